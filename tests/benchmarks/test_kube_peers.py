"""What the peers of the Kubernetes benchmark are given: our pods, which they place themselves."""

from dataclasses import replace
from typing import Any

import pytest

from benchmarks.kube_engine import gang_of, manifest, run_time
from benchmarks.kube_observer import LABEL
from benchmarks.kube_peers import job
from benchmarks.kube_plane import NAMESPACE
from benchmarks.kube_pods_played import IN_NAME
from benchmarks.kube_shapes import Batch
from dsec_blocks.model.gangs import MemberPlacement, Placement
from dsec_workers.clusters.kubernetes.manifest import jobs_of
from dsec_workers.clusters.protocol import GangKey, LaunchOrder

SMALL = Batch(name="small", gangs=3, gpus=2, run_seconds=0.2)


def test_the_peers_pods_are_as_long_as_ours() -> None:
    theirs, ours = job(SMALL, 0, for_kueue=False)["spec"]["template"], our_pod(SMALL)
    assert theirs["spec"]["containers"][0].keys() == ours["spec"]["containers"][0].keys()
    assert theirs["spec"]["containers"][0]["resources"] == ours["spec"]["containers"][0]["resources"]
    assert theirs["spec"]["containers"][0]["resources"]["limits"] == {"nvidia.com/gpu": "2"}
    assert theirs["spec"].keys() == ours["spec"].keys() - {"nodeName"}


def test_the_peers_pods_carry_no_mark_of_ours_but_how_long_they_run() -> None:
    metadata = job(SMALL, 0, for_kueue=False)["spec"]["template"]["metadata"]
    assert metadata["labels"] == {LABEL: "small"}
    assert {name for name in metadata["annotations"] if name.startswith("dsec.io/")} == set(run_time(SMALL))
    assert "nodeName" not in job(SMALL, 0, for_kueue=False)["spec"]["template"]["spec"]


def test_a_pod_of_many_members_does_not_hold_the_whole_placement() -> None:
    many, one = replace(SMALL, members=64), replace(SMALL, members=1)
    assert len(order_of(job(many, 0, for_kueue=False))) < len(order_of(job(one, 0, for_kueue=False))) + 20


@pytest.mark.parametrize("for_kueue", [False, True])
def test_one_job_has_all_members_of_a_gang(for_kueue: bool) -> None:
    found = job(replace(SMALL, members=4), 2, for_kueue=for_kueue)
    assert found["metadata"]["name"] == "small-00002"
    assert (found["spec"]["parallelism"], found["spec"]["completions"]) == (4, 4)
    assert found["spec"].get("suspend", False) is for_kueue


def our_pod(batch: Batch) -> dict[str, Any]:
    gang = gang_of(batch, 0, "0a8c3a1e-0000-4000-8000-000000000000")
    member = MemberPlacement(node="n1", devices=("n1/nvidia.com/gpu/0", "n1/nvidia.com/gpu/1"))
    order = LaunchOrder(
        key=GangKey(gang.run_id, 1), name=gang.name, request=gang.request, placement=Placement(members=(member,)),
        env={},
    )  # fmt: skip
    pod: dict[str, Any] = jobs_of(order, IN_NAME, namespace=NAMESPACE, template=manifest({}, {}))[0]["spec"]["template"]
    return pod


def order_of(found: dict[str, Any]) -> str:
    env = found["spec"]["template"]["spec"]["containers"][0]["env"]
    return next(str(entry["value"]) for entry in env if entry["name"] == "DSEC_ORDER")
