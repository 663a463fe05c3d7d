"""Which version two sides of a gang speak, and what is refused."""

import pytest

from dsec_blocks.model import gang_protocol
from dsec_blocks.model.errors import GangTooNew

OLD, OURS, NEWER = 1, gang_protocol.VERSION, gang_protocol.VERSION + 1


@pytest.mark.parametrize(
    ("greeting", "spoken"),
    [({}, OLD), ({"protocol": OLD}, OLD), ({"protocol": OURS}, OURS), ({"protocol": NEWER}, OURS)],
    ids=["from before versions were told", "older", "ours", "newer"],
)
def test_on_a_connection_the_older_side_s_version_is_spoken(greeting: dict[str, int], spoken: int) -> None:
    assert gang_protocol.told(greeting) == {"protocol": spoken}


@pytest.mark.parametrize("record", [{}, {"protocol": None}, {"protocol": OLD}, {"protocol": "2"}, {"protocol": OURS}])
def test_what_is_not_newer_is_understood(record: dict[str, object]) -> None:
    gang_protocol.refuse_newer(record, "the order", upgrade="dsec")


@pytest.mark.parametrize("said", [NEWER, str(NEWER), "next"])
def test_what_is_newer_is_refused_in_one_line_that_says_what_to_upgrade(said: object) -> None:
    with pytest.raises(GangTooNew) as caught:
        gang_protocol.refuse_newer({"protocol": said}, "the order of run x", upgrade="the DSec in its image")
    line = str(caught.value)
    assert "\n" not in line and "nothing was touched" in line and "upgrade the DSec in its image" in line
    assert "the order of run x" in line and str(said) in line
    assert caught.value.exit_code == 3
