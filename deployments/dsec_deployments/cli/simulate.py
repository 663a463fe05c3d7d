"""`dsec simulate`: a trace replayed through `plan()`, and through others for comparison."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from dsec_deployments.cli.options import Json, Pool

if TYPE_CHECKING:
    from dsec_deployments.replaying import Study
    from dsec_workers.simulation.recording import Recording

ROOMY = 110
"""Columns from which on a terminal has room for the whole table; the report and the JSON have it in any case."""
THIS_POOL = "ledger"
"""The word that stands for the pool's own history instead of a file."""


def simulate(
    trace: Annotated[
        str, typer.Argument(help="A trace file, an incident file (.json), or [bold]ledger[/]: this pool's history.")
    ],
    cluster: Annotated[
        str | None,
        typer.Option("--cluster", help="NODESxGPUS (58x8, 4x8@H100,2x4@A100) or a YAML or JSON file of node groups."),
    ] = None,
    policy: Annotated[
        Path | None, typer.Option("--policy", help="Policy file (YAML or JSON); the default policy without one.")
    ] = None,
    compare: Annotated[
        str,
        typer.Option(
            "--compare", help="Also fifo, easy, kueue-like, tiresias-like, tiresias-like-our-levels; with commas."
        ),
    ] = "",
    format: Annotated[
        str | None, typer.Option("--format", help="csv, philly, alibaba or pollux; told by the columns by default.")
    ] = None,
    jobs: Annotated[int | None, typer.Option("--jobs", min=1, help="Only the first so many jobs.")] = None,
    tick: Annotated[
        float, typer.Option("--tick", min=0.0, help="Seconds of virtual time that are decided about together.")
    ] = 1.0,
    checkpoint: Annotated[
        float, typer.Option("--checkpoint", help="Seconds that an evicted job takes to write its snapshot.")
    ] = 10.0,
    restart: Annotated[float, typer.Option("--restart", help="Seconds until it goes on once it starts again.")] = 30.0,
    interval: Annotated[
        float | None, typer.Option("--interval", help="Seconds between periodic commits; none by default.")
    ] = None,
    fail: Annotated[
        list[str] | None, typer.Option("--fail", help="A node failure, NODE@START+SECONDS. Repeatable.")
    ] = None,
    output: Annotated[Path, typer.Option("--output", "-o", help="Folder for report.html and simulation.json.")] = Path(
        "simulation"
    ),
    pool: Pool = None,
    json: Json = False,
) -> None:
    """Replay a trace through the scheduler of this pool, in virtual time, and see what its users would have seen.

    [bold]The CSV that anybody can write[/] names its columns in the first line: [bold]submit[/] (seconds, or a time),
    [bold]duration[/] (seconds) and [bold]gpus[/], or [bold]nodes[/] and [bold]gpus_per_node[/]; then, where wanted, id,
    team, priority, kind (training, inference, batch, interactive), preemptible (true, false), gpu_model, max_runtime;
    min_nodes makes a job elastic, and serial_fraction is the part of its work that more nodes do not make faster.

    Alibaba's GPU trace of 2023, Philly and the workloads of Pollux are known by their columns. Teams are entitled to
    equal parts, unless the trace is this pool's own. Durations are hidden from every scheduler; evictions cost the same
    under each, and a resize as much as an eviction: a policy with [bold]resizing[/] shrinks and grows elastic jobs, the
    schedulers it is compared with never do. The command may be given again: it writes the same files anew.

    Example: [bold]dsec simulate jobs.csv --cluster 58x8 --compare easy,kueue-like[/]
    """
    from dsec_deployments.cli.output import print_json
    from dsec_deployments.replaying import Study, document, failures_of, policy_of
    from dsec_workers.simulation.overheads import Overheads

    loaded, nodes = _inputs(trace, cluster, format=format, jobs=jobs, pool=pool)
    study = Study(
        trace=loaded,
        nodes=nodes,
        policy=policy_of(policy),
        compare=tuple(name.strip() for name in compare.split(",") if name.strip()),
        overheads=Overheads(checkpoint_seconds=checkpoint, restart_seconds=restart, interval_seconds=interval),
        failures=failures_of(fail or [], nodes),
        tick=tick,
    )
    recordings = _replayed(study)
    told = document(study, recordings)
    _write(output, told, recordings, study)
    if json:
        print_json(told)
    else:
        _print(told, output)


def _inputs(trace: str, cluster: str | None, *, format: str | None, jobs: int | None, pool: str | None) -> Any:
    from dsec_blocks.model.errors import InvalidRequest
    from dsec_workers.simulation.clusters import parse_cluster
    from dsec_workers.simulation.readers.detect import read_trace

    if trace.endswith(".json"):
        from dsec_deployments.foresight import captured
        from dsec_workers.simulation.readers import incident

        there = captured(Path(trace))
        history = incident.read(Path(trace).stem, there.snapshot, there.waiting, there.policy, now=there.now)
        if not history.jobs:
            raise InvalidRequest(f"{trace}: no gang ran or waited when it was captured; there is nothing to replay")
        if cluster:
            raise InvalidRequest("--cluster: an incident has its own nodes; leave it out")
        return history, there.snapshot.fleet.source
    if trace != THIS_POOL:
        if cluster is None:
            raise InvalidRequest("--cluster is missing: on which nodes? For example: --cluster 58x8")
        nodes = parse_cluster(cluster)
        return read_trace(Path(trace), format=format, limit=jobs), nodes
    from dsec_deployments.cli.session import session
    from dsec_workers.simulation.readers import pool as own

    with session(pool) as s:
        decisions = s.ledger.decisions(s.pool, limit=10_000_000)
        history = own.read(
            f"pool {s.pool}", s.ledger.gangs(s.pool), decisions, s.ledger.teams(s.pool), now=s.clock.now()
        )
        nodes = parse_cluster(cluster) if cluster else tuple(s.ledger.nodes(s.pool))
    if not history.jobs:
        raise InvalidRequest(f"pool {s.pool} has no run yet that held a device; there is nothing to replay")
    return history, nodes


def _replayed(study: Study) -> dict[str, Recording]:
    """Every recording, with a bar for each. Ctrl-C ends the command without a trace of it."""
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    from dsec_deployments.cli.output import messages
    from dsec_deployments.replaying import run

    recordings: dict[str, Recording] = {}
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=messages) as progress:
        bars = {name: progress.add_task(name, total=len(study.trace.jobs), start=False) for name in study.names}
        for name, ended, recording in run(study):
            progress.start_task(bars[name])
            progress.update(bars[name], completed=ended)
            if recording is not None:
                recordings[name] = recording
                progress.stop_task(bars[name])
    return recordings


def _write(output: Path, told: dict[str, Any], recordings: dict[str, Recording], study: Study) -> None:
    import json

    from dsec_blocks.gateways import files
    from dsec_blocks.model.errors import InvalidRequest
    from dsec_deployments.cli.output import messages
    from dsec_deployments.replay_report import write_report

    with messages.status("writing the report …"):
        try:
            output.mkdir(parents=True, exist_ok=True)
            text = json.dumps(told, indent=1, ensure_ascii=False) + "\n"
            files.write(output / "simulation.json", text.encode(), at="simulate.json.write")
            write_report(output / "report.html", recordings, remarks=study.trace.remarks)
        except OSError as error:
            raise InvalidRequest(f"--output: {output} cannot be written ({error.strerror}); name another") from None


def _print(told: dict[str, Any], output: Path) -> None:
    from dsec_blocks.model.units import format_duration
    from dsec_deployments.cli.output import console, print_table

    for remark in told["remarks"]:
        console.print(f"note: {remark}", markup=False)
    columns: list[tuple[str, Callable[[str, Any], str]]] = [
        ("policy", lambda name, row: name),
        ("mean wait>", lambda name, row: format_duration(row["mean_wait"])),
        ("p95>", lambda name, row: format_duration(row["p95_wait"])),
        ("longest>", lambda name, row: format_duration(row["max_wait"])),
        ("mean JCT>", lambda name, row: format_duration(row["mean_jct"])),
        ("use>", lambda name, row: f"{row['utilisation']:.1%}"),
        ("evicted>", lambda name, row: f"{row['evictions']:,}"),
        ("lost GPU-h>", lambda name, row: f"{row['lost_device_hours']:,.1f}"),
    ]
    if console.width >= ROOMY:
        columns += [
            ("in pieces>", lambda name, row: f"{row['fragmented']:.1%}"),
            ("fairness>", lambda name, row: f"{row['fairness']:.2f}"),
            ("unfinished>", lambda name, row: f"{row['jobs'] - row['finished']:,}"),
        ]
    print_table(
        f"{told['trace']}: {told['jobs']:,} jobs on {told['nodes']:,} nodes, {told['devices']:,} GPUs",
        [title for title, _ in columns],
        [[cell(name, row) for _, cell in columns] for name, row in told["policies"].items()],
        empty="nothing was replayed",
        wrap=False,
    )
    for name, row in told["policies"].items():
        if row["resizes"]:
            console.print(
                f"{name} resized {row['resizes']:,} times (counted among the evicted), for "
                f"{row['resize_device_hours']:,.1f} GPU-h of checkpoints and restarts",
                markup=False,
            )
    refused = max(row["refused"] for row in told["policies"].values())
    if refused:
        console.print(f"{refused:,} jobs never fit this cluster and were left out")
    console.print(f"report: {output / 'report.html'}   figures: {output / 'simulation.json'}", markup=False)
