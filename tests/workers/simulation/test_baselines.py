"""Each baseline does what its source says: one story a rule."""

from typing import Any

import pytest

from dsec_workers.scheduling import Policy
from dsec_workers.simulation.baselines import TiresiasLike
from dsec_workers.simulation.clusters import parse_cluster
from dsec_workers.simulation.jobs import Trace
from dsec_workers.simulation.overheads import Overheads
from dsec_workers.simulation.recording import Recording
from dsec_workers.simulation.replay import Replay
from tests.workers.simulation.worlds import ends, job, replayed, starts, team, trace

FREE = Overheads(checkpoint_seconds=0.0, restart_seconds=0.0)


def test_fifo_lets_nobody_pass_its_head() -> None:
    what = trace(job("long", 0, 100, "6"), job("big", 1, 10, "8"), job("small", 2, 10, "1"))
    assert starts(replayed(what, "1x8", "fifo")) == {"long": 0.0, "big": 100.0, "small": 110.0}


def _taught(*jobs: object) -> list[object]:
    """Six short one-device jobs and six long six-device jobs have ended before anything that matters begins."""
    short = [job(f"short{n}", 0, 10, "1") for n in range(6)]
    long = [job(f"long{n}", 20 + 1000 * n, 1000, "6", team="b") for n in range(6)]
    return [*short, *long, *jobs]


def test_easy_lets_a_job_pass_that_will_have_ended_before_the_head_can_start() -> None:
    later = [job("now", 10_000, 1000, "6", team="b"), job("head", 10_001, 50, "8"), job("passer", 10_002, 10, "1")]
    found = starts(replayed(trace(*_taught(*later)), "1x8", "easy"))  # type: ignore[arg-type]
    assert found["passer"] == 10_002.0
    assert found["head"] == 11_000.0


def test_easy_lets_no_job_pass_that_would_delay_the_head() -> None:
    later = [job("now", 10_000, 1000, "6", team="b"), job("head", 10_001, 50, "8"),
             job("late", 10_500, 1000, "2", team="b")]  # fmt: skip
    found = starts(replayed(trace(*_taught(*later)), "1x8", "easy"))  # type: ignore[arg-type]
    assert found["head"] == 11_000.0
    assert found["late"] == 11_050.0


def test_easy_lets_a_long_job_use_the_node_that_the_head_does_not_need() -> None:
    later = [job("now1", 10_000, 1000, "6", team="b"), job("now2", 10_000, 2000, "6", team="b"),
             job("head", 10_001, 50, "8"), job("aside", 10_500, 5000, "2", team="b")]  # fmt: skip
    found = replayed(trace(*_taught(*later)), "2x8", "easy")  # type: ignore[arg-type]
    assert starts(found)["aside"] == 10_500.0
    assert starts(found)["head"] == 11_000.0


def test_kueue_lets_a_team_borrow_and_takes_it_back_from_the_newest() -> None:
    what = trace(
        job("old", 0, 1000, "4"), job("new", 10, 1000, "4"), job("rightful", 100, 50, "4", team="b")
    )  # fmt: skip
    found = replayed(what, "1x8", "kueue-like", teams=[team("a", 4), team("b", 4)], overheads=FREE)
    assert {id for id, outcome in found.outcomes.items() if outcome.evictions} == {"new"}
    assert starts(found)["rightful"] == 100.0
    assert ends(found)["new"] == 1060.0


def test_kueue_takes_nothing_back_for_a_team_that_would_itself_borrow() -> None:
    what = trace(job("old", 0, 1000, "8"), job("greedy", 100, 50, "8", team="b"))
    found = replayed(what, "1x8", "kueue-like", teams=[team("a", 4), team("b", 4)])
    assert starts(found)["greedy"] == 1000.0


def test_kueue_lets_the_next_of_a_queue_start_when_its_head_does_not_fit() -> None:
    what = trace(job("long", 0, 1000, "6"), job("big", 1, 10, "8"), job("small", 2, 10, "1"))
    assert starts(replayed(what, "1x8", "kueue-like"))["small"] == 2.0


def test_kueue_evicts_lower_priorities_of_the_same_queue() -> None:
    what = trace(job("low", 0, 1000, "8"), job("high", 10, 50, "8", priority=5))
    found = replayed(what, "1x8", "kueue-like", teams=[team("a", 8)], overheads=FREE)
    assert starts(found) == {"low": 0.0, "high": 10.0}


def test_tiresias_lets_a_newcomer_interrupt_what_has_had_its_3250_device_seconds() -> None:
    what = trace(job("long", 0, 5000, "8"), job("new", 1000, 100, "8"))
    found = replayed(what, "1x8", "tiresias-like", overheads=FREE)
    assert starts(found) == {"long": 0.0, "new": 1000.0}
    assert ends(found) == {"long": 5100.0, "new": 1100.0}


def test_tiresias_interrupts_nobody_before_that_and_does_at_that_very_second() -> None:
    what = trace(job("long", 0, 5000, "1"), job("new", 1000, 100, "1"))
    found = replayed(what, "1x1", "tiresias-like", overheads=FREE)
    assert starts(found)["new"] == 3250.0


def _under_tiresias(what: Trace, cluster: str, **options: Any) -> Recording:
    nodes = parse_cluster(cluster)
    return Replay(what, nodes, TiresiasLike(**options), overheads=FREE).run()


def _spans(found: Recording, id: str) -> list[tuple[float, float]]:
    return [(span.start, span.end) for span in found.spans if span.id == id]


def test_tiresias_has_the_three_queues_of_its_simulator() -> None:
    what = trace(job("one", 0, 9000, "1"), job("two", 1, 9000, "1"))
    found = _under_tiresias(what, "1x1")
    # 3,250 s for each in the first queue, 3,950 more in the second, the rest in the third, in turns.
    assert _spans(found, "one") == [(0, 3250), (6500, 10_450), (14_400, 16_200)]
    assert _spans(found, "two") == [(3250, 6500), (10_450, 14_400), (16_200, 18_000)]


def test_tiresias_counts_service_in_devices_times_seconds() -> None:
    what = trace(job("wide", 0, 200, "8"), job("new", 1, 10, "8"))
    found = _under_tiresias(what, "1x8", limits=(800.0,))
    assert _spans(found, "wide") == [(0, 100), (110, 210)]


def test_tiresias_serves_those_that_run_before_those_that_wait_in_the_same_queue() -> None:
    what = trace(job("first", 0, 100, "2"), job("old", 1, 1000, "1"), job("short", 1, 30, "1"),
                 job("late", 60, 200, "1"))  # fmt: skip
    found = _under_tiresias(what, "1x2", limits=(100.0,))
    # `first` falls at 50 s and gives way. `old` falls at 150 s, `late` at 180 s: never both at once behind it.
    assert _spans(found, "first") == [(0, 50), (1050, 1100)]
    assert _spans(found, "old") == [(50, 1050)]
    assert _spans(found, "late") == [(80, 280)]


def test_tiresias_puts_who_has_fallen_behind_all_of_the_next_queue() -> None:
    what = trace(job("x", 0, 300, "1"), job("y", 10, 300, "1"))
    found = _under_tiresias(what, "1x1", limits=(100.0,))
    assert _spans(found, "x") == [(0, 100), (200, 400)]
    assert _spans(found, "y") == [(100, 200), (400, 600)]


def test_tiresias_puts_who_gave_way_to_another_queue_in_front_of_its_own() -> None:
    what = trace(job("x", 0, 300, "1"), job("y", 10, 300, "1"), job("u", 220, 50, "1"))
    found = _under_tiresias(what, "1x1", limits=(100.0,))
    assert _spans(found, "x") == [(0, 100), (200, 220), (270, 450)]
    assert _spans(found, "y") == [(100, 200), (450, 650)]


@pytest.mark.parametrize(("promote_after", "back_at"), [(None, 460.0), (1.0, 370.0)])
def test_tiresias_promotes_who_has_waited_its_service_times_the_factor_where_asked_to(
    promote_after: float | None, back_at: float
) -> None:
    short = [job(f"s{n}", at, 90, "1") for n, at in enumerate((50, 60, 70, 300))]
    found = _under_tiresias(trace(job("x", 0, 150, "1"), *short), "1x1", limits=(100.0,), promote_after=promote_after)
    # It falls at 100 s and has waited as long as it ran at 200 s: behind the two that came by then, before the last.
    assert _spans(found, "x") == [(0, 100), (back_at, back_at + 50)]


def test_tiresias_with_our_levels_falls_where_our_time_sharing_does() -> None:
    what = trace(job("one", 0, 50_000, "1"), job("two", 1, 100, "1"))
    found = replayed(what, "1x1", "tiresias-like-our-levels", overheads=FREE)
    assert starts(found)["two"] == Policy().level_device_seconds[0]
