"""The workloads of Pollux: 160 deep-learning jobs in eight hours, as its simulator replays them.

Columns: name, time (s), application, num_replicas (GPUs), batch_size. A workload tells no duration: it follows from
how long the application needs on so many GPUs. Here that is the application's GPU-time class in the paper (small under
one GPU-hour … extra large above a hundred), taken at fixed values below and divided by the GPUs: enough for queueing
studies, no statement about Pollux' own results. Source: Qiao et al., OSDI 2021, table 1; petuum/adaptdl.
"""

from pathlib import Path

from dsec_blocks.model.errors import InvalidRequest
from dsec_workers.simulation.jobs import Job, Trace, arrange
from dsec_workers.simulation.readers.table import Requests, number, rows, whole

COLUMNS = ("name", "time", "application", "num_replicas")
DEVICE_HOURS = {"cifar10": 0.5, "ncf": 0.5, "bert": 5.0, "deepspeech2": 5.0, "yolov3": 50.0, "imagenet": 250.0}
"""GPU-hours that an application takes: the middle of its class."""


def read(path: Path, *, limit: int | None = None) -> Trace:
    """The jobs; the team is the application. Nodes have four GPUs in Pollux' cluster, so gangs are spread by fours."""
    requests = Requests()
    jobs = []
    for line, row in rows(path, COLUMNS):
        hours = DEVICE_HOURS.get(row["application"])
        if hours is None:
            raise InvalidRequest(
                f"{path}, line {line}: application is {row['application']!r}; there are {', '.join(DEVICE_HOURS)}"
            )
        devices = whole(row["num_replicas"], path=path, line=line, column="num_replicas", low=1)
        at = number(row["time"], path=path, line=line, column="time")
        jobs.append(
            Job(
                id=row["name"],
                team=row["application"],
                request=requests.request(devices, per_node=4),
                submit_at=at,
                duration=hours * 3600.0 / devices,
            )
        )
    remarks = ("durations are GPU-hours of the application's class ÷ GPUs; the workload itself tells none",)
    return Trace(name=path.stem, jobs=arrange(jobs)[:limit], remarks=remarks)
