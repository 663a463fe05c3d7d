"""Microsoft's Philly trace in the form that the Pollux authors derived from it.

Columns: timestamp, duration (s), num_gpus, gpu_time, cluster. `cluster` is the virtual cluster, which becomes the
team. Source: Jeon et al., USENIX ATC 2019; petuum/adaptdl, branch osdi21-artifact.
"""

from datetime import datetime
from pathlib import Path

from dsec_blocks.model.errors import InvalidRequest
from dsec_workers.simulation.jobs import Job, Trace, arrange
from dsec_workers.simulation.readers.table import Requests, number, rows, whole

COLUMNS = ("timestamp", "duration", "num_gpus", "cluster")


def read(path: Path, *, limit: int | None = None) -> Trace:
    """The first `limit` jobs by time (all, when None)."""
    requests = Requests()
    found: list[tuple[datetime, int, float, int, str]] = []
    for line, row in rows(path, COLUMNS):
        try:
            at = datetime.fromisoformat(row["timestamp"])
        except ValueError:
            raise InvalidRequest(
                f"{path}, line {line}: timestamp is {row['timestamp']!r}; a time such as 2017-10-09 07:01:55 is needed"
            ) from None
        duration = number(row["duration"], path=path, line=line, column="duration")
        devices = whole(row["num_gpus"], path=path, line=line, column="num_gpus", low=1)
        found.append((at, line, duration, devices, row["cluster"]))
    found.sort(key=lambda entry: entry[:2])
    first = found[0][0] if found else None
    jobs = [
        Job(
            id=f"philly-{line:06}",
            team=team,
            request=requests.request(devices),
            submit_at=(at - first).total_seconds() if first else 0.0,
            duration=duration,
        )
        for at, line, duration, devices, team in found[:limit]
    ]
    return Trace(name="philly", jobs=arrange(jobs))
