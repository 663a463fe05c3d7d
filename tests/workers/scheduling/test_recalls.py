"""Passers that are told to leave for the head of line, although somebody else's contract ends only as it starts."""

from dataclasses import replace
from typing import Any

import pytest

from dsec_workers.scheduling import Plan, RunningGang, Shadow
from dsec_workers.scheduling.recalls import due_times
from tests.workers.scheduling.world import NOW, POLICY, carry_out, cluster, decide, node, running, waiting, why

TWO = [node("n1", 4), node("n2", 4)]
START = NOW + 3600.0
HEAD = waiting("head", "2x4", waited=3 * 3600.0)
SHADOW = Shadow(
    run_id="head", resource_pool="every GPU", start=START, since=NOW,
    devices=tuple(f"n{i}/{j}" for i in (1, 2) for j in range(4)),
)  # fmt: skip
LASTING = running("lasting", "n1/0-3", ran=3600, max_runtime_seconds=7200.0, preemptible=False)
"""Its contract ends as the head is to start."""


def passer(run_id: str = "passer", devices: str = "n2/0-3", **more: Any) -> RunningGang:
    """It needs 40 s to leave."""
    known = {"ran": 60, "priority": 50, "first_commit_at": None, "conditional_until": START}
    return running(run_id, devices, **{**known, "checkpoint_seconds": 10.0, "grace_seconds": 30.0, **more})


def recalled(result: Plan) -> dict[str, str]:
    return {recall.run_id: recall.for_run for recall in result.recalls}


def test_a_passer_is_told_in_time_although_the_head_cannot_be_admitted_yet_and_not_before() -> None:
    snapshot = cluster(TWO, [LASTING, passer()], shadows=[SHADOW])
    assert decide(snapshot, HEAD, now=START - 41).recalls == ()
    result = decide(snapshot, HEAD, now=START - 40)
    assert recalled(result) == {"passer": "head"} and result.admits == ()
    assert result.recalls[0].start == START == result.shadows[0].start and result.recalls[0].cost > 0


@pytest.mark.parametrize(
    ("held", "queue"),
    [
        pytest.param([passer(evicting=True, evicting_for="other")], [HEAD], id="one that is leaving already"),
        pytest.param(
            [passer(conditional_until=None)], [HEAD], id="one that passed nobody, whatever the head's rights are"
        ),
        pytest.param(
            [passer(ran=3600, max_runtime_seconds=7200.0)], [HEAD], id="one whose own contract ends as the head starts"
        ),
        pytest.param([passer()], [replace(HEAD, evicted_for=("passer",))], id="one that the head once gave way to"),
        pytest.param(
            [passer()], [replace(HEAD, not_before=START + 60)], id="one for a head that may not start for longer"
        ),
    ],
)
def test_nobody_is_told_in_vain(held: list[RunningGang], queue: list[Any]) -> None:
    snapshot = cluster(TWO, [LASTING, *held], shadows=[SHADOW])
    assert decide(snapshot, *queue, now=START - 40).recalls == ()


def test_the_condition_holds_for_the_next_head_too() -> None:
    snapshot = cluster(TWO, [LASTING, passer()])
    assert recalled(decide(snapshot, replace(HEAD, run_id="next"), now=START - 40)) == {"passer": "next"}


def test_devices_do_not_lie_idle_for_a_start_that_is_a_guess() -> None:
    """The other holder has no contract: passers leave once the head can be admitted."""
    endless = replace(LASTING, request=replace(LASTING.request, max_runtime_seconds=None), started_at=NOW)
    snapshot = cluster(TWO, [endless, passer()], shadows=[SHADOW])
    for late in (-40.0, 0.0, 3600.0):
        assert decide(snapshot, HEAD, now=START + late).recalls == ()
    gone = snapshot.apply(finished=["lasting"])
    assert [victim.run_id for victim in decide(gone, HEAD, now=START - 40).admits[0].victims] == ["passer"]


def test_a_passer_that_stands_elsewhere_stays() -> None:
    snapshot = cluster([*TWO, node("n3", 4)], [LASTING, passer(), passer("aside", "n3/0-3")], shadows=[SHADOW])
    assert recalled(decide(snapshot, HEAD, now=START - 40)) == {"passer": "head"}


def test_each_passer_is_told_at_its_own_time_and_nobody_takes_what_the_first_has_left() -> None:
    slow, quick = passer("slow", "n2/0-1", grace_seconds=100.0), passer("quick", "n2/2-3")
    snapshot = cluster(TWO, [LASTING, slow, quick], shadows=[SHADOW])
    first = decide(snapshot, HEAD, now=START - 110)
    assert recalled(first) == {"slow": "head"}
    leaving = carry_out(snapshot, first, [HEAD])
    others = [
        waiting("short", "2", checkpoint_seconds=0.0, restart_seconds=0.0, grace_seconds=1.0),
        waiting("urgent", "2", priority=0, preemptible=False),
    ]
    then = decide(leaving, HEAD, *others, now=START - 100)
    assert then.recalls == () and then.admits == () and why(then)["head"] == "waits-for-victims"
    assert recalled(decide(leaving, HEAD, *others, now=START - 40)) == {"quick": "head"}
    gone = leaving.apply(finished=["slow"])
    assert recalled(decide(gone, HEAD, now=START - 40)) == {"quick": "head"}


def test_a_passer_that_is_slow_to_leave_puts_nobody_elses_time_off() -> None:
    late = passer("late", "n2/0-1", evicting=True, evicting_for="head", grace_seconds=300.0)
    snapshot = cluster(TWO, [LASTING, late, passer("quick", "n2/2-3")], shadows=[SHADOW])
    assert recalled(decide(snapshot, HEAD, now=START - 40)) == {"quick": "head"}


@pytest.mark.parametrize(("left", "passes"), [(41.0, True), (39.0, False)])
def test_nobody_passes_who_could_not_leave_in_time_however_little_a_policy_asks_of_passers(
    left: float, passes: bool
) -> None:
    late = waiting("late", "4", checkpoint_seconds=10.0, restart_seconds=0.0, grace_seconds=30.0)
    snapshot = cluster(TWO, [LASTING], shadows=[SHADOW])
    result = decide(snapshot, HEAD, late, policy=replace(POLICY, conditional_worth=0.0), now=START - left)
    assert result.conditional == ({"late": START} if passes else {})


def test_the_head_starts_on_what_was_left_for_it_the_moment_the_contract_ends() -> None:
    snapshot = cluster(TWO, [LASTING, passer()], shadows=[SHADOW])
    snapshot = carry_out(snapshot, decide(snapshot, HEAD, now=START - 40), [HEAD])
    (admit,) = decide(snapshot.apply(finished=["lasting"]), HEAD, now=START - 1).admits
    assert (admit.run_id, admit.waits_for, admit.victims) == ("head", ("passer",), ())
    (admit,) = decide(snapshot.apply(finished=["lasting", "passer"]), HEAD, now=START).admits
    assert (admit.run_id, admit.waits_for) == ("head", ())


def test_the_times_at_which_somebody_may_have_to_be_told_are_known_before() -> None:
    gangs = [LASTING, passer(), passer("told", evicting=True), passer("past", conditional_until=NOW - 1)]
    later = replace(SHADOW, start=START + 600)
    assert sorted(due_times(gangs, [later], POLICY, NOW)) == [START - 40, START + 560, START + 560]
