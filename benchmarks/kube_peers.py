"""What users run today: plain Indexed Jobs through kube-scheduler, and the same Jobs suspended for Kueue to release."""

from collections.abc import Sequence
from typing import Any

from benchmarks.kube_engine import run_time
from benchmarks.kube_kueue import LOCAL_QUEUE, priority_class
from benchmarks.kube_observer import LABEL
from benchmarks.kube_plane import AT, NAMESPACE, Site, at_once
from benchmarks.kube_pods_played import IMAGE
from benchmarks.kube_shapes import Batch, mixed

JOBS = f"/apis/batch/v1/namespaces/{NAMESPACE}/jobs"
GPU = "nvidia.com/gpu"


def job(batch: Batch, number: int, *, for_kueue: bool) -> dict[str, Any]:
    """One Job with all members of one gang."""
    labels = {LABEL: batch.name}
    cards = {GPU: str(batch.gpus)}
    container = {"name": "main", "image": IMAGE, "resources": {"limits": cards, "requests": cards}}
    pod = {
        "metadata": {"labels": labels, "annotations": run_time(batch)},
        "spec": {"restartPolicy": "Never", "terminationGracePeriodSeconds": 1, "containers": [container]},
    }
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
