"""What users run today: plain Indexed Jobs through kube-scheduler, and the same Jobs suspended for Kueue to release.

Their pods are ours: the same command, environment, volumes, rights and tolerations, without our marks and without the
place that we choose. So what is compared is who schedules, and not whose pods are longer.
"""

from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any
from uuid import uuid4

from benchmarks.kube_engine import gang_of, manifest, run_time
from benchmarks.kube_kueue import LOCAL_QUEUE, priority_class
from benchmarks.kube_observer import LABEL
from benchmarks.kube_plane import AT, NAMESPACE, Site, at_once
from benchmarks.kube_pods_played import IN_NAME
from benchmarks.kube_shapes import Batch, mixed
from dsec_blocks.model.gangs import MemberPlacement, Placement
from dsec_workers.clusters.kubernetes.manifest import jobs_of
from dsec_workers.clusters.kubernetes.naming import OURS
from dsec_workers.clusters.protocol import GangKey, LaunchOrder

JOBS = f"/apis/batch/v1/namespaces/{NAMESPACE}/jobs"


@cache
def pod_template(batch: Batch) -> dict[str, Any]:
    """The pod of one member as our adapter writes it, unplaced and unmarked.

    Of a gang of several it is one that is told where the first is, as all but one are.
    """
    gang = gang_of(batch, 0, str(uuid4()))
    devices = tuple(f"node/nvidia.com/gpu/{index}" for index in range(batch.gpus))
    members = (MemberPlacement(node="node", devices=devices),) * batch.members
    order = LaunchOrder(
        key=GangKey(gang.run_id, 1), name=gang.name, request=gang.request, placement=Placement(members=members), env={},
        team=gang.team,
    )  # fmt: skip
    labels, annotations = {LABEL: batch.name}, run_time(batch)
    jobs = jobs_of(order, IN_NAME, namespace=NAMESPACE, template=manifest(labels, annotations))
    pod: dict[str, Any] = jobs[-1]["spec"]["template"]
    metadata = pod["metadata"]
    metadata["labels"] = _unmarked(metadata["labels"]) | labels
    metadata["annotations"] = _unmarked(metadata["annotations"]) | annotations
    del pod["spec"]["nodeName"]
    pod["spec"]["terminationGracePeriodSeconds"] = 1  # with 0 a pod is gone before anybody has seen it end
    return pod


def _unmarked(names: Mapping[str, str]) -> dict[str, str]:
    return {name: value for name, value in names.items() if not name.startswith(OURS)}


def job(batch: Batch, number: int, *, for_kueue: bool) -> dict[str, Any]:
    """One Job with all members of one gang."""
    labels = {LABEL: batch.name}
    pod = pod_template(batch)
    spec = {
        "parallelism": batch.members,
        "completions": batch.members,
        "completionMode": "Indexed",
        # A Job that is evicted and comes again must not fail of it; those that run for ever have no end to fail to.
        "backoffLimit": 0 if batch.run_seconds is None else 6,
        "template": pod,
    }
    if for_kueue:
        spec["suspend"] = True
        labels = {
            **labels,
            "kueue.x-k8s.io/queue-name": batch.queue_of(number) or LOCAL_QUEUE,
            "kueue.x-k8s.io/priority-class": priority_class(batch.priority),
        }
    metadata = {"name": f"{batch.name}-{number:05}", "namespace": NAMESPACE, "labels": labels}
    return {"apiVersion": "batch/v1", "kind": "Job", "metadata": metadata, "spec": spec}


async def submit(here: Site, batches: Sequence[Batch], *, for_kueue: bool) -> None:
    """Create the Jobs of these batches, mixed."""

    async def create(item: tuple[Batch, int]) -> None:
        await here.api.create(JOBS, job(*item, for_kueue=for_kueue), at=AT)

    await at_once(mixed(batches), create)
