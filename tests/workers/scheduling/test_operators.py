"""What operators order, as the plan sees it: freezes, devices kept for somebody, nodes to be emptied, single runs."""

from dsec_workers.scheduling.snapshot import Frozen, Override
from dsec_workers.scheduling.withheld import Withheld
from tests.workers.scheduling.world import (
    NOW,
    admitted,
    cluster,
    decide,
    evicted,
    node,
    running,
    team,
    texts,
    waiting,
    why,
)

HOUR = 3600.0
TWO = [node("n1", 4), node("n2", 4)]
N1 = frozenset(f"n1/{i}" for i in range(4))


def window(start: float = NOW + HOUR, end: float = NOW + 2 * HOUR, **more) -> Withheld:
    fields = {"teams": frozenset({"b"}), "text": "reserved for team b by ops: demo", **more}
    return Withheld(name="reservation 7", devices=N1, start=start, end=end, **fields)


def test_a_frozen_team_waits_and_the_others_do_not() -> None:
    snapshot = cluster(TWO, frozen=Frozen(teams={"a": "frozen by ops: audit"}))
    result = decide(snapshot, waiting("g"), waiting("h", team="b"))
    assert list(admitted(result)) == ["h"]
    assert texts(result)["g"] == "admission to team a is frozen: frozen by ops: audit"


def test_within_a_window_only_those_it_is_for_start_on_its_devices() -> None:
    snapshot = cluster(TWO, withheld=[window(start=NOW - 1)])
    result = decide(
        snapshot, waiting("one", "4", waited=99), waiting("two", "4"), waiting("of-b", "4", team="b", waited=1)
    )
    assert admitted(result) == {"one": ["n2"], "of-b": ["n1"]}
    assert why(result) == {"two": "waits-for-capacity"}


def test_whoever_waits_is_told_for_whom_the_devices_are_kept() -> None:
    snapshot = cluster([node("n1", 4)], withheld=[window(start=NOW - 1)])
    result = decide(snapshot, waiting("g", "4"))
    assert why(result) == {"g": "admission-frozen"}
    assert texts(result)["g"] == "needs 4 GPUs on one node; what is free is kept: reserved for team b by ops: demo"


def test_a_tag_opens_a_window() -> None:
    snapshot = cluster([node("n1", 4)], withheld=[window(start=NOW - 1, teams=frozenset(), tags=frozenset({"demo"}))])
    assert admitted(decide(snapshot, waiting("g", "4", tags=("demo", "x")))) == {"g": ["n1"]}
    assert admitted(decide(snapshot, waiting("g", "4", tags=("x",)))) == {}


def test_before_a_window_whoever_ends_in_time_may_use_its_devices() -> None:
    snapshot = cluster([node("n1", 4)], withheld=[window()])
    kept_off = {"preemptible": False}
    assert admitted(decide(snapshot, waiting("g", "4", max_runtime_seconds=HOUR, **kept_off))) == {"g": ["n1"]}
    assert admitted(decide(snapshot, waiting("g", "4", max_runtime_seconds=HOUR + 1, **kept_off))) == {}
    assert admitted(decide(snapshot, waiting("g", "4", **kept_off))) == {}, "no contract, and nobody may evict it"


def test_before_a_window_whoever_can_be_evicted_may_use_its_devices_if_that_is_worth_it() -> None:
    assert admitted(decide(cluster([node("n1", 4)], withheld=[window()]), waiting("g", "4"))) == {"g": ["n1"]}
    soon = cluster([node("n1", 4)], withheld=[window(start=NOW + 60)])
    assert admitted(decide(soon, waiting("g", "4"))) == {}


def test_nothing_that_cannot_end_before_the_deadline_starts_on_a_node_that_is_to_be_drained() -> None:
    drain = Withheld(
        name="drain of n1", devices=N1, start=NOW + HOUR, conditional=False, text="n1 is drained by ops: fan"
    )
    snapshot = cluster([node("n1", 4)], withheld=[drain])
    assert admitted(decide(snapshot, waiting("short", "4", max_runtime_seconds=HOUR))) == {"short": ["n1"]}
    result = decide(snapshot, waiting("long", "4"))
    assert texts(result)["long"] == "needs 4 GPUs on one node; what is free is kept: n1 is drained by ops: fan"


def test_a_window_that_is_over_keeps_nothing() -> None:
    snapshot = cluster([node("n1", 4)], withheld=[window(start=NOW - 2, end=NOW)])
    assert admitted(decide(snapshot, waiting("g", "4"))) == {"g": ["n1"]}


def test_nobody_is_evicted_for_devices_that_the_preemptor_may_not_use() -> None:
    held = [running("r", "n1/0-3", team="b")]
    snapshot = cluster([node("n1", 4)], held, withheld=[window(start=NOW - 1)])
    assert evicted(decide(snapshot, waiting("g", "4", priority=90))) == {}


def test_a_head_that_may_not_use_a_window_casts_its_shadow_elsewhere() -> None:
    held = [running("r", "n2/0-3", max_runtime_seconds=2 * HOUR)]
    snapshot = cluster(TWO, held, withheld=[window(start=NOW - 1)])
    [shadow] = decide(snapshot, waiting("g", "4")).shadows
    assert all(uuid.startswith("n2/") for uuid in shadow.devices)


def test_a_run_started_by_order_goes_before_all_others_and_past_every_limit() -> None:
    teams = [team("a", 0, borrow=0), team("b", 4)]
    order = {"g": Override(admit=True, text="by ops: demo")}
    frozen = Frozen(everything="frozen by ops: audit")
    snapshot = cluster([node("n1", 4)], teams=teams, overrides=order, frozen=frozen)
    result = decide(snapshot, waiting("g", "4", waited=1), waiting("old", "4", team="b", waited=9e5, priority=99))
    assert admitted(result) == {"g": ["n1"]}
    assert why(result) == {"old": "admission-frozen"}


def test_a_run_started_by_order_still_evicts_by_its_own_rights_only() -> None:
    order = {"g": Override(admit=True, text="by ops: demo")}
    snapshot = cluster([node("n1", 4)], [running("r", "n1/0-3", priority=5)], overrides=order)
    assert evicted(decide(snapshot, waiting("g", "4", priority=5))) == {}
    assert evicted(decide(snapshot, waiting("g", "4", priority=6))) == {"g": ["r"]}


def test_what_never_fits_does_not_fit_by_order_either() -> None:
    order = {"g": Override(admit=True, text="by ops: demo")}
    assert why(decide(cluster(TWO, overrides=order), waiting("g", "5"))) == {"g": "never-fits"}


def test_a_run_held_by_order_waits_whatever_its_rank() -> None:
    order = {"g": Override(admit=False, text="by ops: data is missing")}
    result = decide(cluster(TWO, overrides=order), waiting("g", "4", priority=99), waiting("h", "4"))
    assert list(admitted(result)) == ["h"]
    assert texts(result)["g"] == "held back by ops: data is missing"


def test_orders_change_nothing_for_others_of_the_same_kind() -> None:
    order = {"g1": Override(admit=False, text="by ops: x")}
    result = decide(cluster(TWO, overrides=order), *[waiting(f"g{i}", "1") for i in range(4)])
    assert sorted(admitted(result)) == ["g0", "g2", "g3"]
