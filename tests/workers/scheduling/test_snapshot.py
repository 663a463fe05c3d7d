"""The arrays: kept current, they decide as if built anew, and a cycle leaves them alone."""

import numpy as np

from tests.workers.scheduling.world import cluster, decide, node, running, team, waiting, why


def same(left, right):
    def owners(snapshot, slots):
        return [None if slot < 0 else snapshot.running[slot].run_id for slot in slots]

    return owners(left, left.holder) == owners(right, right.holder) and owners(left, left.next_holder) == owners(
        right, right.next_holder
    )


NODES = [node("n1", 4), node("n2", 4)]


def test_t41_a_cycle_changes_nothing_in_its_snapshot_whatever_it_tried():
    snapshot = cluster(NODES, [running("r1", "n1/0-3"), running("r2", "n2/0-1")])
    before = (snapshot.holder.copy(), snapshot.next_holder.copy(), snapshot.running)
    queue = [waiting("p", "2x4", priority=9), waiting("q", "2"), waiting("x", "9")]
    first = decide(snapshot, *queue)
    assert np.array_equal(snapshot.holder, before[0]) and np.array_equal(snapshot.next_holder, before[1])
    assert snapshot.running is before[2] and decide(snapshot, *queue) == first


def test_t43_the_limit_counts_the_gang_being_tested_and_gangs_admitted_in_the_same_cycle():
    snapshot = cluster(NODES, [running("r", "n1/0", team="a")], [team("a", 2, borrow=1)])
    result = decide(snapshot, *[waiting(f"g{i}", "1") for i in range(4)])
    assert len(result.admits) == 2 and set(why(result).values()) == {"waits-for-quota"}
    assert decide(snapshot, waiting("three", "3")).admits == ()


def test_gangs_that_leave_do_not_count_against_their_team_and_promised_ones_do():
    teams = [team("a", 4, borrow=0), team("b", 4)]
    held = [running("old", "n1/0-3", team="a", evicting=True), running("new", "n1/0-3", team="b", promised=True)]
    assert len(decide(cluster(NODES, held, teams), waiting("g", "4", team="a")).admits) == 1
    held = [running("old", "n1/0-3", team="b", evicting=True), running("new", "n1/0-3", team="a", promised=True)]
    assert why(decide(cluster(NODES, held, teams), waiting("g", "4", team="a"))) == {"g": "waits-for-quota"}


def test_a_device_released_early_belongs_to_its_new_holder_though_the_old_one_is_still_recorded():
    held = [running("old", "n1/0-3", evicting=True), running("new", "n1/0-3")]
    for order in (held, held[::-1]):
        snapshot = cluster(NODES, order)
        assert {snapshot.running[slot].run_id for slot in snapshot.holder if slot >= 0} == {"new"}
        assert same(snapshot, cluster(NODES).apply(updated=order))


def test_applying_changes_equals_building_anew():
    r1, r2, r3 = running("r1", "n1/0-3"), running("r2", "n2/0-1"), running("r3", "n2/2-3")
    promised = running("p", "n1/0-3", promised=True)
    leaving = running("r1", "n1/0-3", evicting=True, evicting_for="p")
    kept = cluster(NODES, [r1, r2]).apply(updated=[r3]).apply(updated=[leaving, promised]).apply(finished=["r2"])
    assert same(kept, cluster(NODES, [leaving, promised, r3]))
    started = running("p", "n1/0-3")
    assert same(kept.apply(finished=["r1"], updated=[started]), cluster(NODES, [started, r3]))
    fewer = [node("n1", 4), node("n2", 2)]
    assert same(kept.apply(nodes=fewer), cluster(fewer, [leaving, promised, r3]))
    queue = [waiting("w", "2"), waiting("x", "4", priority=3)]
    assert decide(kept, *queue) == decide(cluster(NODES, [leaving, promised, r3]), *queue)


def test_a_gang_on_a_node_that_is_gone_still_counts_for_its_team():
    snapshot = cluster([node("n1", 4)], [running("lost", "n9/0-3", team="a")], [team("a", 4, borrow=2)])
    assert why(decide(snapshot, waiting("g", "3"))) == {"g": "waits-for-quota"}
