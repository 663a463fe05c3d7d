"""Loads and figures of the Kubernetes benchmark: what is not measured has no figure, both peers get the same pods."""

import pytest

from benchmarks.kube_observer import LABEL, Tally
from benchmarks.kube_peers import job
from benchmarks.kube_shapes import KUEUE, OURS, PLAIN, Batch, figures, letters, overcommitted, scenarios


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
    assert figures(walls) == {"jobs4000_wall_vs_kueue": 0.25, "reclaim1_s": 0.5}


def test_only_names_scenarios_and_c_is_both_reclaims() -> None:
    assert letters("a,c") == ["a", "c1", "c2"]
    assert letters("c2") == ["c2"]
    with pytest.raises(ValueError, match="--only x: the scenarios are a, b, c1, c2"):
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
    assert tally.told() == {"jobs": {"running": 2, "first": 1.0, "at": 3.0}}


def test_a_node_with_more_pods_than_cards_is_found_and_what_has_ended_does_not_count() -> None:
    def pod(node: str, gpus: int, phase: str = "Running") -> dict[str, object]:
        container = {"resources": {"limits": {"nvidia.com/gpu": str(gpus)}}}
        return {"spec": {"nodeName": node, "containers": [container]}, "status": {"phase": phase}}

    pods = [pod("full", 8), pod("full", 8, "Failed"), pod("twice", 8), pod("twice", 1, "Pending"), pod("", 8)]
    assert overcommitted(pods) == {"twice": 9}
