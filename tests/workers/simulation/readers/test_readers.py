"""Trace files: each known format, and one clear sentence for everything that is none."""

import os
from pathlib import Path

import pytest

from dsec_blocks.ledger.decisions import Decision
from dsec_blocks.model.errors import InvalidRequest
from dsec_blocks.model.gangs import Gang, GangState
from dsec_blocks.model.requests import GangRequest, Kind
from dsec_blocks.model.teams import Team
from dsec_workers.simulation.readers import pool
from dsec_workers.simulation.readers.detect import read_trace

DATA = Path(os.environ.get("DSEC_DATA", Path(__file__).parents[4].parent / "shared" / "data"))


def written(folder: Path, text: str) -> Path:
    path = folder / "trace.csv"
    path.write_text(text, encoding="utf-8")
    return path


def test_the_plain_csv_takes_shapes_teams_and_limits(tmp_path: Path) -> None:
    text = (
        "id,submit,duration,gpus,nodes,gpus_per_node,team,priority,kind,preemptible,gpu_model,max_runtime\n"
        "a,5,60,12,,,vision,10,batch,false,H100,90\n"
        "b,0,30.5,,2,4,,,,,,\n"
    )
    b, a = read_trace(written(tmp_path, text)).jobs
    assert (a.id, a.team, a.submit_at, a.duration) == ("a", "vision", 5.0, 60.0)
    assert (a.request.nodes, a.request.devices_per_node, a.request.priority) == (2, 6, 10)
    assert (a.request.kind, a.request.preemptible, a.request.gpu_model) == (Kind.BATCH, False, "H100")
    assert a.request.max_runtime_seconds == 90.0
    assert (b.team, b.request.nodes, b.request.devices_per_node, b.duration) == ("default", 2, 4, 30.5)


def test_the_plain_csv_takes_times_in_any_order(tmp_path: Path) -> None:
    text = "submit,duration,gpus\n2026-01-31 08:01:00,60,1\n2026-01-31 08:00:00,60,1\n"
    assert [job.submit_at for job in read_trace(written(tmp_path, text)).jobs] == [0.0, 60.0]


def test_the_plain_csv_says_who_is_elastic_and_how_it_scales(tmp_path: Path) -> None:
    text = "submit,duration,nodes,gpus_per_node,min_nodes,serial_fraction\n0,60,4,2,1,0.1\n1,60,4,2,,\n"
    elastic, fixed = read_trace(written(tmp_path, text)).jobs
    assert (elastic.request.min_nodes, elastic.serial_fraction) == (1, 0.1)
    assert (fixed.request.min_nodes, fixed.serial_fraction) == (None, 0.0)
    # Amdahl: a tenth of the work is not made faster, so four members are 4 ÷ 1.3 times as fast as one.
    assert elastic.speed(1) == pytest.approx(1.3 / 4) and elastic.speed(4) == fixed.speed(4) == 1.0
    assert fixed.speed(2) == 0.5
    spread = read_trace(written(tmp_path, "submit,duration,gpus,min_nodes\n0,60,16,1\n")).jobs[0].request
    assert (spread.nodes, spread.min_nodes, spread.devices_per_node) == (2, 1, 8)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "its columns (none) fit no format"),
        ("a,b\n1,2\n", "its columns (a, b) fit no format"),
        ("submit,duration,gpus\n", "there is no job in it"),
        ("submit,duration,gpus\n1,2\n", "line 2: the row has not as many fields as the first line"),
        ("submit,duration,gpus\nsoon,2,1\n", "line 2: submit is 'soon'; give seconds since the beginning or a time"),
        ("submit,duration,gpus\n-1,2,1\n", "line 2: submit is '-1'"),
        ("submit,duration,gpus\n1,nan,1\n", "line 2: duration is 'nan'; a number of at least 0 is needed"),
        ("submit,duration,gpus\n1,2,1.5\n", "line 2: gpus is '1.5'; a whole number is needed"),
        ("submit,duration,gpus\n1,2,\n", "line 2: gpus is ''; a number of at least 0 is needed"),
        ("submit,duration,gpus,colour\n1,2,1,red\n", "unknown column 'colour'; there are duration, gpu_model"),
        ("submit,duration,gpus,kind\n1,2,1,fun\n", "kind is 'fun'; there are training, inference"),
        ("submit,duration,gpus,preemptible\n1,2,1,maybe\n", "preemptible is 'maybe'; give true or false"),
        ("submit,duration,gpus,min_nodes\n1,2,8,2\n", "line 2: min_nodes is 2, more than its nodes (1); lower it"),
        ("submit,duration,gpus,min_nodes\n1,2,8,0\n", "line 2: min_nodes is '0'; a number of at least 1 is needed"),
        (
            "submit,duration,gpus,serial_fraction\n1,2,8,2\n",
            "is '2'; a number of at least 0 and at most 1",
        ),
        ("id,submit,duration,gpus\nx,1,2,1\nx,1,2,1\n", "line 3: there is a job 'x' already"),
        ("timestamp,duration,num_gpus,cluster\nnow,1,1,a\n", "timestamp is 'now'; a time such as 2017-10-09"),
        ("name,time,application,num_replicas\nx,0,doom,1\n", "application is 'doom'; there are cifar10"),
    ],
)
def test_a_bad_file_is_refused_with_its_name_its_line_and_what_would_do(tmp_path: Path, text: str, says: str) -> None:
    path = written(tmp_path, text)
    with pytest.raises(InvalidRequest) as error:
        read_trace(path)
    assert str(error.value).startswith(str(path))
    assert says in str(error.value)


def test_a_file_that_is_not_there_or_no_text_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidRequest, match="cannot be read"):
        read_trace(tmp_path / "none.csv")
    (tmp_path / "x.csv").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(InvalidRequest, match="not UTF-8 text"):
        read_trace(tmp_path / "x.csv")
    with pytest.raises(InvalidRequest, match="--format: 'xls' is unknown"):
        read_trace(tmp_path / "x.csv", format="xls")


@pytest.mark.skipif(not DATA.exists(), reason=f"no public data at {DATA}; set DSEC_DATA")
@pytest.mark.parametrize(
    ("file", "jobs", "devices"),
    [
        ("philly/philly.csv", 82_247, 107_235),
        ("alibaba-gpu-v2023/openb_pod_list_default.csv", 7_064, 7_433),
        ("pollux-osdi21/workloads/workload-6.csv", 160, 1_134),
    ],
)
def test_the_public_traces_are_known_by_their_columns(file: str, jobs: int, devices: int) -> None:
    trace = read_trace(DATA / file)
    assert len(trace.jobs) == jobs
    assert sum(job.request.devices for job in trace.jobs) == devices
    assert trace.jobs[0].submit_at >= 0.0
    assert [job.submit_at for job in trace.jobs] == sorted(job.submit_at for job in trace.jobs)


def _gang(run_id: str, eligible_at: float) -> Gang:
    return Gang(
        run_id=run_id, name=run_id, pool="p", team="a", request=GangRequest(devices_per_node=2),
        state=GangState.ENDED, submitted_at=eligible_at, eligible_at=eligible_at,
    )  # fmt: skip


def _entry(at: float, run_id: str, stage: str, outcome: str) -> Decision:
    return Decision(at=at, pool="p", run_id=run_id, stage=stage, outcome=outcome, why="")


def test_the_pools_own_history_counts_the_time_that_attempts_held_devices() -> None:
    history = [
        _entry(110.0, "x", "plan", "admit"),
        _entry(150.0, "x", "end", "requeued"),
        _entry(170.0, "x", "plan", "admit"),
        _entry(180.0, "y", "plan", "admit"),
        _entry(200.0, "x", "end", "Completed"),
    ]
    gangs = [_gang("x", 100.0), _gang("y", 160.0), _gang("never", 170.0)]
    trace = pool.read("pool p", gangs, history, {"a": Team(name="a", nominal_devices=2)}, now=230.0)
    assert [(job.id, job.submit_at, job.duration) for job in trace.jobs] == [("x", 0.0, 70.0), ("y", 60.0, 50.0)]
    assert trace.remarks == ("1 runs never held a device and are left out",)
    assert trace.teams["a"].nominal_devices == 2
