"""Alibaba's GPU cluster trace of 2023 (the pod list of FGD's authors), its clusters included.

Columns: name, cpu_milli, memory_mib, num_gpu, gpu_milli, gpu_spec, qos, pod_phase, creation_time, deletion_time,
scheduled_time. A pod without GPUs needs none of the devices that are replayed and is left out; a part of a card counts
as a whole one; of several models that a pod accepts the first is taken. Latency-sensitive pods (qos LS) are services:
inference that nobody evicts. All of that is told in the trace's remarks. Source: Weng et al., USENIX ATC 2023;
alibaba/clusterdata, cluster-trace-gpu-v2023.
"""

from collections import Counter
from pathlib import Path
from typing import Any

from dsec_blocks.model.errors import InvalidRequest
from dsec_blocks.model.requests import Kind
from dsec_workers.simulation.jobs import Job, Trace, arrange
from dsec_workers.simulation.readers.table import Requests, number, rows, whole

COLUMNS = ("name", "num_gpu", "gpu_milli", "gpu_spec", "qos", "creation_time", "deletion_time")
_KINDS = {"LS": Kind.INFERENCE, "Guaranteed": Kind.INFERENCE, "BE": Kind.TRAINING, "Burstable": Kind.BATCH}
PRIORITIES = {Kind.INFERENCE: 50}
"""Services go first in Alibaba's clusters."""


def read(path: Path, *, limit: int | None = None) -> Trace:
    """The pods with GPUs; the team is their quality-of-service class."""
    requests, seen = Requests(), Counter[str]()
    jobs: list[Job] = []
    for line, row in rows(path, COLUMNS):
        devices = whole(row["num_gpu"], path=path, line=line, column="num_gpu")
        milli = whole(row["gpu_milli"] or "0", path=path, line=line, column="gpu_milli")
        if not devices:
            seen["ask for no GPU and are left out"] += 1
            continue
        if milli < 1000:
            seen["ask for a part of a GPU and get a whole one"] += 1
        models = [model for model in row["gpu_spec"].split("|") if model]
        if len(models) > 1:
            seen["accept several models and get the first"] += 1
        kind = _KINDS.get(row["qos"])
        if kind is None:
            raise InvalidRequest(f"{path}, line {line}: qos is {row['qos']!r}; there are {', '.join(_KINDS)}")
        created = number(row["creation_time"], path=path, line=line, column="creation_time")
        deleted = number(row["deletion_time"], path=path, line=line, column="deletion_time")
        fields: dict[str, Any] = {"kind": kind, "priority": PRIORITIES.get(kind, 0)}
        if models:
            fields["gpu_model"] = models[0]
        jobs.append(
            Job(
                id=row["name"],
                team=row["qos"],
                request=requests.request(devices, **fields),
                submit_at=created,
                duration=max(0.0, deleted - created),
            )
        )
    remarks = tuple(f"{count:,} pods {what}" for what, count in seen.items())
    return Trace(name=path.stem, jobs=arrange(jobs)[:limit], remarks=remarks)
