"""A table of holds is a sequence like any other."""

import numpy as np
import pytest

from dsec_blocks.model.reasons import Reason, ReasonCode
from dsec_workers.scheduling.decisions import Hold, Plan
from dsec_workers.scheduling.hold_table import HoldTable

FULL = Reason(code=ReasonCode.WAITS_FOR_CAPACITY, text="none free")
OVER = Reason(code=ReasonCode.WAITS_FOR_QUOTA, text="over quota")
LAST = Hold(run_id="d", reason=OVER)
HOLDS = (
    Hold(run_id="a", reason=OVER, position=1, eta=None, age=0.5, others=(1.0, 2.0)),
    Hold(run_id="b", reason=FULL, position=2, eta=7.0, age=0.25, others=(3.0, 4.0)),
    Hold(run_id="c", reason=OVER, position=3, eta=None, age=0.0, others=(1.0, 2.0)),
    LAST,
)


def table(last: Hold = LAST) -> HoldTable:
    return HoldTable(
        run_ids=np.array(["a", "b", "c"], object), kinds=np.array([1, 0, 1]), reasons=[FULL, OVER],
        summands=[(3.0, 4.0), (1.0, 2.0)], positions=np.array([1, 2, 3]), etas={1: 7.0},
        ages=np.array([0.5, 0.25, 0.0]), others=(last,),
    )  # fmt: skip


def test_it_has_the_holds_of_its_columns_and_then_the_others() -> None:
    assert tuple(table()) == HOLDS and len(table()) == 4
    assert [type(value) for value in next(iter(table()))] == [type(value) for value in HOLDS[0]]
    assert [table()[index] for index in range(-4, 4)] == [*HOLDS, *HOLDS]
    assert table()[1:] == HOLDS[1:] and HOLDS[2] in table()


@pytest.mark.parametrize("index", [4, -5])
def test_there_is_none_beyond_the_last(index: int) -> None:
    with pytest.raises(IndexError, match="of 4"):
        table()[index]


def test_plans_with_equal_holds_are_equal_however_they_keep_them() -> None:
    assert table() == table() == HOLDS and hash(table()) == hash(HOLDS) and repr(table()) == repr(HOLDS)
    assert Plan(holds=table()) == Plan(holds=HOLDS)
    assert table() != table(LAST._replace(run_id="e")) and table() != HOLDS[:3] and table() != list("abcd")
