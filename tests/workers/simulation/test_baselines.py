"""Each baseline does what its source says: one story a rule."""

from dsec_workers.simulation.overheads import Overheads
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


def test_tiresias_serves_the_lower_queue_first_come_first_served() -> None:
    what = trace(job("one", 0, 9000, "1"), job("two", 1, 9000, "1"))
    found = replayed(what, "1x1", "tiresias-like", overheads=FREE)
    # The second gets its turn when the first has fallen, and gives way once it has fallen itself.
    assert starts(found)["two"] == 3250.0
    assert ends(found) == {"one": 12_250.0, "two": 18_000.0}
