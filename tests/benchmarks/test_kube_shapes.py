"""Loads and figures of the Kubernetes benchmark: what is not measured has no figure, both peers get the same pods."""

from collections import Counter

import pytest

from benchmarks.kube_engine import run_time, teams
from benchmarks.kube_kueue import cluster_queues
from benchmarks.kube_observer import LABEL, Tally
from benchmarks.kube_peers import job
from benchmarks.kube_shapes import KUEUE, OURS, PLAIN, Batch, bounds, figures, letters, mixed, overcommitted, scenarios
from dsec_blocks.model.teams import check_tree


def test_the_loads_are_those_that_were_promised() -> None:
    loads = scenarios()
    assert (loads["a"].gpus, loads["a"].batches[-1].pods) == (4000, 4000)
    gang = loads["b"].batches[-1]
    assert (gang.gangs, gang.members, gang.gpus) == (1, 64, 8)
    for letter, members, gpus in (("c1", 1, 1), ("c2", 250, 8)):
        fill, urgent = loads[letter].batches
        assert fill.pods * fill.gpus == loads[letter].gpus, "the cluster is full before anybody reclaims"
        assert (urgent.gangs, urgent.members, urgent.gpus) == (1, members, gpus)
        assert urgent.priority > fill.priority


def test_the_baseline_is_kueues_own_whose_quotas_alone_decide() -> None:
    load = scenarios()["d"]
    assert load.quotas is not None
    assert [(b.name, b.gangs, b.gpus, b.priority, b.run_seconds) for b in load.batches] == [
        ("small", 30 * 350, 1, 50, 0.2), ("medium", 30 * 100, 5, 100, 0.5), ("large", 30 * 50, 20, 200, 1.0),
    ]  # fmt: skip
    assert sum(batch.gangs for batch in load.batches) == 15_000
    queues = load.quotas.queues()
    for batch in load.batches:
        dealt = Counter(batch.queue_of(number) for number in range(batch.gangs))
        assert set(dealt) == set(queues) and len(set(dealt.values())) == 1, "every queue gets the same"
    owned = load.quotas.gpus * len(queues)
    largest = max(batch.gpus for batch in load.batches)
    assert owned < load.nodes * (load.gpus_per_node - largest + 1), "some node has room for the largest at any time"
    peers = cluster_queues(load.gpus, load.quotas)
    assert Counter(queue["spec"]["cohortName"] for queue in peers) == {f"cohort-{n}": 6 for n in range(5)}
    ours = {team.name: team for team in teams(load.quotas)}
    check_tree(ours)
    for queue in peers:
        resource = queue["spec"]["resourceGroups"][0]["flavors"][0]["resources"][0]
        team = ours[queue["metadata"]["name"]]
        assert (resource["nominalQuota"], resource["borrowingLimit"]) == ("20", "100")
        assert (team.nominal_devices, team.borrow_devices, team.parent) == (20, 100, queue["spec"]["cohortName"])
        assert team.highest_priority >= 200
        assert (ours[team.parent or ""].nominal_devices, ours[team.parent or ""].borrow_devices) == (0, 0)


def test_a_smaller_baseline_has_fewer_gangs_in_the_same_queues() -> None:
    small, whole = scenarios(0.1)["d"], scenarios()["d"]
    assert [batch.gangs for batch in small.batches] == [1050, 300, 150]
    assert (small.nodes, small.quotas) == (whole.nodes, whole.quotas)


def test_mixed_batches_come_evenly() -> None:
    batches = [Batch(name="many", gangs=90), Batch(name="few", gangs=10)]
    order = mixed(batches)
    assert sorted((batch.name, number) for batch, number in order) == sorted(
        (batch.name, number) for batch in batches for number in range(batch.gangs)
    )
    assert [sum(batch.name == "few" for batch, _ in order[i : i + 20]) for i in range(0, 100, 20)] == [2] * 5


def test_pods_that_end_say_so_to_both_in_the_same_way() -> None:
    batch = scenarios()["d"].batches[0]
    assert job(batch, 7, for_kueue=True)["metadata"]["labels"]["kueue.x-k8s.io/queue-name"] == batch.queue_of(7)
    assert job(batch, 0, for_kueue=True)["spec"]["backoffLimit"] > 0, "an evicted Job comes again"
    annotations = job(batch, 0, for_kueue=False)["spec"]["template"]["metadata"]["annotations"]
    assert run_time(batch) == {"dsec.io/runs-for-milliseconds": "200"}
    assert run_time(batch).items() <= annotations.items()


@pytest.mark.parametrize("scale", [0.1, 0.05, 0.5])
def test_a_smaller_cluster_is_as_full(scale: float) -> None:
    for letter in ("c1", "c2"):
        small = scenarios(scale)[letter]
        fill, urgent = small.batches
        assert fill.pods * fill.gpus == small.gpus
        assert urgent.members * urgent.gpus <= small.gpus
    assert scenarios(scale)["b"].batches[0].gangs == 1


def test_a_ratio_is_ours_over_theirs_and_only_of_what_was_measured() -> None:
    walls = {("jobs4000", OURS): 20.0, ("jobs4000", KUEUE): 80.0, ("reclaim1", OURS): 0.5, ("gang512", PLAIN): 1.0}
    walls |= {("baseline15000", OURS): 30.0, ("baseline15000", KUEUE): 90.0}
    assert figures(walls) == {"baseline15000_wall_vs_kueue": 1 / 3} | {
        "jobs4000_wall_vs_kueue": 0.25,
        "reclaim1_s": 0.5,
    }


def test_a_peer_that_was_given_up_took_longer_than_that_and_the_ratio_says_at_most() -> None:
    walls = {("reclaim2000", OURS): 90.0, ("reclaim1", OURS): 0.5, ("reclaim1", KUEUE): 1.0}
    given_up = {("reclaim2000", KUEUE): 900.0, ("jobs4000", KUEUE): 900.0, ("gang512", OURS): 900.0}
    assert figures(walls, given_up) == {
        "reclaim1_s": 0.5, "reclaim2000_s": 90.0, "reclaim1_vs_kueue": 0.5, "reclaim2000_vs_kueue": 0.1
    }  # fmt: skip
    assert bounds(walls, given_up) == {"reclaim2000_vs_kueue": "at most: kueue was given up after 900 s"}


def test_only_names_scenarios_and_c_is_both_reclaims() -> None:
    assert letters("a,c") == ["a", "c1", "c2"]
    assert letters("c2") == ["c2"]
    with pytest.raises(ValueError, match="--only x: the scenarios are a, b, c1, c2, d"):
        letters("a,x")


def test_both_peers_get_the_same_pods_and_only_kueue_its_queue() -> None:
    batch = Batch(name="gang", gangs=1, members=64, gpus=8, priority=90)
    plain, queued = job(batch, 0, for_kueue=False), job(batch, 0, for_kueue=True)
    assert plain["spec"]["template"] == queued["spec"]["template"]
    assert plain["spec"]["parallelism"] == 64
    limits = plain["spec"]["template"]["spec"]["containers"][0]["resources"]["limits"]
    assert limits == {"nvidia.com/gpu": "8"}
    assert "suspend" not in plain["spec"]
    assert queued["spec"]["suspend"] is True
    assert queued["metadata"]["labels"]["kueue.x-k8s.io/priority-class"] == "bench-90"


def test_a_pod_counts_once_and_only_when_it_runs() -> None:
    tally = Tally()

    def pod(uid: str, phase: str, batch: str | None = "jobs") -> dict[str, object]:
        labels = {} if batch is None else {LABEL: batch}
        return {"metadata": {"uid": uid, "labels": labels}, "status": {"phase": phase}}

    for at, seen in enumerate([pod("1", "Pending"), pod("1", "Running"), pod("1", "Running"), pod("2", "Running"),
                               pod("2", "Failed"), pod("3", "Running", None)]):  # fmt: skip
        tally.note(seen, float(at))
    assert tally.told() == {"jobs": {"running": 2, "first": 1.0, "at": 3.0, "mean": 2.0, "ended": 0}}
    for at in (7.0, 8.0):
        tally.note(pod("4", "Succeeded"), at)
    told = tally.told()["jobs"]
    assert (told["running"], told["at"], told["ended"], told["ended_at"]) == (3, 7.0, 1, 7.0), "it ran, seen or not"


def test_a_node_with_more_pods_than_cards_is_found_and_what_has_ended_does_not_count() -> None:
    def pod(node: str, gpus: int, phase: str = "Running") -> dict[str, object]:
        container = {"resources": {"limits": {"nvidia.com/gpu": str(gpus)}}}
        return {"spec": {"nodeName": node, "containers": [container]}, "status": {"phase": phase}}

    pods = [pod("full", 8), pod("full", 8, "Failed"), pod("twice", 8), pod("twice", 1, "Pending"), pod("", 8)]
    assert overcommitted(pods) == {"twice": 9}
