"""Where the time of a start went, told as far as it is known."""

from typing import Any

import pytest

from dsec_blocks.ledger import Prefetch, PrefetchState
from dsec_workers.lifecycle.start_split import start_split
from tests.workers.lifecycle.records import gang

GIB = 1 << 30


def prefetch(node: str = "n1", *, state: PrefetchState = PrefetchState.DONE, **fields: Any) -> Prefetch:
    told = {
        "began_at": 101.0, "ended_at": 142.0, "bytes_done": 4 * GIB, "bytes_total": 4 * GIB, "attempt": 1,
        **({"ended_at": None} if state in (PrefetchState.ORDERED, PrefetchState.FETCHING) else {}), **fields,
    }  # fmt: skip
    return Prefetch(
        run_id="run", node=node, pool="pool", addresses=("s3://b/x",), ordered_at=100.0, state=state, **told
    )


def split(*prefetches: Prefetch, **fields: Any) -> dict[str, tuple[float | None, str]]:
    mine = {"eligible_at": 97.0, "admitted_at": 100.0, "launched_at": 150.0, **fields}
    return {stage.name: (stage.seconds, stage.describe()) for stage in start_split(gang(**mine), prefetches)}


def test_a_start_without_inputs_has_a_place_and_a_launch() -> None:
    assert split() == {
        "placement": (3.0, "3.00 s; due to reserved"),
        "launch": (50.0, "50 s; reserved to user code"),
    }


def test_a_gang_that_was_never_reserved_has_no_start() -> None:
    assert split(admitted_at=None, launched_at=None) == {}


def test_of_a_later_attempt_nobody_knows_when_it_was_due() -> None:
    assert "placement" not in split(attempt=2)


@pytest.mark.parametrize(
    ("case", "prefetches", "seconds", "text"),
    [
        ("in time", [prefetch()], 41.0, "41 s; 4 GiB on n1 in 41 s; done before user code"),
        (
            "late",
            [prefetch(), prefetch("n2", ended_at=155.0)],
            54.0,
            "54 s; 4 GiB on n1 in 41 s; 4 GiB on n2 in 54 s; done 5.00 s after user code began",
        ),
        ("not begun", [prefetch(state=PrefetchState.ORDERED, began_at=None)], None, "not begun on n1"),
        ("under way", [prefetch(state=PrefetchState.FETCHING, bytes_done=GIB)], None, "at 1 GiB of 4 GiB on n1"),
        ("failed", [prefetch(state=PrefetchState.FAILED, error="no route")], None, "failed on n1: no route"),
        (
            "one of two withdrawn",
            [prefetch(), prefetch("n2", state=PrefetchState.WITHDRAWN, bytes_done=GIB)],
            None,
            "4 GiB on n1 in 41 s; stopped at 1 GiB of 4 GiB on n2",
        ),
        ("no agent", [prefetch(state=PrefetchState.WITHDRAWN, began_at=None)], None, "never begun on n1"),
    ],
)  # fmt: skip
def test_the_fetch_is_told_by_node(case: str, prefetches: list[Prefetch], seconds: float | None, text: str) -> None:
    assert split(*prefetches)["fetch"] == (seconds, text)


def test_orders_of_another_attempt_say_nothing() -> None:
    assert "fetch" not in split(prefetch(attempt=2))


def test_the_slowest_nodes_verification_counts() -> None:
    found = split(prefetch(figures={"verify": 1.0}), prefetch("n2", figures={"verify": 2.0}), prefetch("n3"))
    assert found["verify"][0] == 2.0


GOT = {
    "cache.attempt": 1.0, "cache.total_bytes": 4.0 * GIB, "cache.cluster_bytes": 1.0 * GIB,
    "cache.origin_bytes": 2.0 * GIB, "cache.stall_seconds": 33.0, "cache.fetch_seconds": 30.0,
    "cache.verify_seconds": 2.5,
}  # fmt: skip


def test_a_start_that_fetched_on_demand_says_how_long_and_what_came_too_late() -> None:
    """It had neither a fetch nor a verification: nobody had fetched ahead of it."""
    found = split(metrics=GOT)
    assert found["fetch"] == (30.0, "30 s; 3 GiB by the gang itself")
    assert (found["verify"][0], found["stall"][0]) == (2.5, 33.0)
    late = split(prefetch(state=PrefetchState.FAILED, error="no route"), metrics=GOT)
    assert late["fetch"] == (30.0, "30 s; 3 GiB by the gang itself; failed on n1: no route")


def test_a_start_that_found_everything_there_keeps_what_was_fetched_ahead_of_it() -> None:
    warm = {**GOT, "cache.cluster_bytes": 0.0, "cache.origin_bytes": 0.0, "cache.stall_seconds": 0.01}
    found = split(prefetch(figures={"verify": 1.0}), metrics=warm)
    assert (found["fetch"][0], found["verify"][0], found["stall"][0]) == (41.0, 1.0, 0.01)


def test_what_an_earlier_attempt_acquired_is_not_this_ones() -> None:
    assert "stall" not in split(attempt=2, metrics=GOT)


def test_a_flow_may_say_how_long_its_weights_took() -> None:
    assert split(metrics={"load_seconds": 0.25})["load"][0] == 0.25


def test_the_time_to_the_first_step_is_told_once_there_is_one() -> None:
    assert split(restart_seconds=62.0, reported_step=1)["init"] == (12.0, "12 s; user code to first step")
    assert "init" not in split(restart_seconds=62.0, reported_step=None)
    assert "init" not in split(restart_seconds=20.0, reported_step=1), "measured of an earlier attempt"
