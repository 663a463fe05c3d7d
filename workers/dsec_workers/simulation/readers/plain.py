"""DSec's own trace format: a CSV that anybody can write.

Columns, in any order, the first line naming them:

| column | | meaning |
|---|---|---|
| submit | required | seconds since the trace began, or a time such as 2026-01-31 08:00:00 |
| duration | required | seconds of work without interruption |
| gpus | required, or nodes and gpus_per_node | devices of the whole gang, 8 a node at most |
| nodes, gpus_per_node | | the exact shape |
| id | | a name; the line number by default |
| team | | "default" by default |
| priority | | whole number, 0 by default |
| kind | | training, inference, batch or interactive |
| preemptible | | true or false |
| gpu_model | | only on such devices |
| max_runtime | | seconds; a limit that is enforced, and lets the job pass a waiting head of line |
| min_nodes | | the job is elastic: it accepts any number of its nodes from so many on, with the same devices on each |
| serial_fraction | | of an elastic job: the part of its work, 0 to 1, that more nodes do not make faster (0) |

The duration of an elastic job is that of its full size; at a smaller one it takes longer (see `speedup`).
"""

from collections.abc import Mapping
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import Any

from dsec_blocks.model.errors import InvalidRequest
from dsec_blocks.model.requests import Kind
from dsec_workers.simulation.jobs import Job, Trace, arrange
from dsec_workers.simulation.readers.table import Requests, number, rows, whole

COLUMNS = ("submit", "duration")
KNOWN = {*COLUMNS, "gpus", "nodes", "gpus_per_node", "id", "team", "priority", "kind", "preemptible", "gpu_model",
         "max_runtime", "min_nodes", "serial_fraction"}  # fmt: skip


def read(path: Path, *, limit: int | None = None) -> Trace:
    """The trace in `path`. Raises `InvalidRequest` for the first line that cannot be read."""
    requests = Requests()
    jobs: list[Job] = []
    ids: set[str] = set()
    first: datetime | None = None
    for line, row in rows(path, COLUMNS):
        unknown = sorted(set(row) - KNOWN)
        if unknown:
            raise InvalidRequest(f"{path}: unknown column {unknown[0]!r}; there are {', '.join(sorted(KNOWN))}")
        at, first = _submit(row["submit"], first, path, line)
        id = row.get("id") or f"job-{line:06}"
        if id in ids:
            raise InvalidRequest(f"{path}, line {line}: there is a job {id!r} already; ids must differ")
        ids.add(id)
        fields = _fields(row, path, line)
        if row.get("nodes") or row.get("gpus_per_node"):
            nodes = whole(row.get("nodes") or "1", path=path, line=line, column="nodes", low=1)
            per = whole(row.get("gpus_per_node") or "", path=path, line=line, column="gpus_per_node")
            request = requests.shape(nodes, per, **fields)
        else:
            devices = whole(row.get("gpus") or "", path=path, line=line, column="gpus")
            request = requests.request(devices, **fields)
        least = request.min_nodes
        if least is not None and least > request.nodes:
            raise InvalidRequest(
                f"{path}, line {line}: min_nodes is {least}, more than its nodes ({request.nodes}); lower it"
            )
        jobs.append(
            Job(
                id=id,
                team=row.get("team") or "default",
                request=request,
                submit_at=at,
                duration=number(row["duration"], path=path, line=line, column="duration"),
                serial_fraction=number(
                    row.get("serial_fraction") or "0", path=path, line=line, column="serial_fraction", high=1.0
                ),
            )
        )
    ordered = arrange(jobs)
    begin = min(0.0, ordered[0].submit_at) if ordered else 0.0
    if begin < 0:  # rows with times need not be in order
        ordered = tuple(replace(job, submit_at=job.submit_at - begin) for job in ordered)
    return Trace(name=path.stem, jobs=ordered[:limit])


def _submit(text: str, first: datetime | None, path: Path, line: int) -> tuple[float, datetime | None]:
    try:
        seconds = float(text)
    except ValueError:
        try:
            at = datetime.fromisoformat(text)
        except ValueError:
            at = None
        if at is None or (first is not None and (at.tzinfo is None) != (first.tzinfo is None)):
            raise InvalidRequest(
                f"{path}, line {line}: submit is {text!r}; give seconds since the beginning or a time such as "
                "2026-01-31 08:00:00"
            ) from None
        first = first or at
        return (at - first).total_seconds(), first
    if not 0 <= seconds < 1e12:
        raise InvalidRequest(f"{path}, line {line}: submit is {text!r}; give seconds since the beginning, 0 or more")
    return seconds, first


def _fields(row: Mapping[str, str], path: Path, line: int) -> dict[str, Any]:
    fields: dict[str, Any] = {}
    if row.get("priority"):
        fields["priority"] = whole(row["priority"], path=path, line=line, column="priority")
    if row.get("kind"):
        try:
            fields["kind"] = Kind(row["kind"])
        except ValueError:
            raise InvalidRequest(f"{path}, line {line}: kind is {row['kind']!r}; there are {', '.join(Kind)}") from None
    if row.get("preemptible"):
        if row["preemptible"].lower() not in ("true", "false"):
            raise InvalidRequest(f"{path}, line {line}: preemptible is {row['preemptible']!r}; give true or false")
        fields["preemptible"] = row["preemptible"].lower() == "true"
    if row.get("gpu_model"):
        fields["gpu_model"] = row["gpu_model"]
    if row.get("min_nodes"):
        fields["min_nodes"] = whole(row["min_nodes"], path=path, line=line, column="min_nodes", low=1)
    if row.get("max_runtime"):
        fields["max_runtime_seconds"] = number(row["max_runtime"], path=path, line=line, column="max_runtime", low=1.0)
    return fields
