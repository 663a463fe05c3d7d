"""`dsec checkpoint`: what runs have saved, and going back to it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from dsec_deployments.cli.options import Json

if TYPE_CHECKING:
    from dsec_blocks.checkpoints.commit_log import CommitLog
    from dsec_blocks.checkpoints.heads import Commit
    from dsec_blocks.checkpoints.places import Place

app = typer.Typer(no_args_is_help=True, help="What runs have saved, and going back to it.")

Store = Annotated[
    str | None,
    typer.Option("--store", envvar="DSEC_STORE", help="A path, s3://bucket/prefix or a CheckpointStore block."),
]
RunId = Annotated[str, typer.Argument(help="A run that has checkpoints: its id, or the beginning of it.")]
Step = Annotated[int, typer.Option("--step", min=0, help="The number of finished steps, as `ls` shows it.")]


@app.command(epilog="Example: [bold]dsec checkpoint ls 3f2a[/]")
def ls(
    run: Annotated[str | None, typer.Argument(help="A run; all runs of the store without it.")] = None,
    store: Store = None,
    json: Json = False,
) -> None:
    """List the runs of a store, or the commits of one run."""
    from dsec_deployments.cli.output import print_json, print_table

    place = _place(store)
    if run is None:
        runs = [(name, _log(place, name).head()) for name in _runs(place)]
        summary = [
            {
                "run": name,
                "commits": len(head.commits),
                "newest_step": max((c.step for c in head.commits), default=None),
            }
            for name, head in runs
        ]
        if json:
            print_json(summary)
        else:
            rows = [list(entry.values()) for entry in summary]
            print_table(
                "Checkpoints", ["run", "commits>", "newest step>"], rows, empty=f"no checkpoints at {place.url}"
            )
        return
    log = _log(place, _found(place, run))
    head = log.head()
    commits = []
    for commit in head.newest_first:
        marks = ["resumes here next"] if commit.digest == head.resume_from else []
        marks += ["the current attempt resumed here"] if commit.digest == head.base else []
        marks += ["the next attempt starts over without it"] if head.start_over else []
        size = _size(log, commit)
        commits.append({"step": commit.step, "attempt": commit.attempt, "bytes": size, "note": ", ".join(marks)})
    if json:
        print_json(commits)
    else:
        rows = [list(entry.values()) for entry in commits]
        print_table(f"Commits of {log.run}", ["step>", "attempt>", "bytes>", "note"], rows, empty="no commits")


@app.command(epilog="Example: [bold]dsec checkpoint verify 3f2a[/] (exit code 1 when a commit cannot be read)")
def verify(
    run: RunId,
    step: Annotated[int | None, typer.Option("--step", min=0, help="One step; every commit without it.")] = None,
    store: Store = None,
) -> None:
    """Read commits whole and compare every byte with what was committed."""
    from dsec_blocks.checkpoints.heads import with_step
    from dsec_blocks.checkpoints.shards import Torn
    from dsec_deployments.cli.output import console

    place = _place(store)
    log = _log(place, _found(place, run))
    head = log.head()
    commits = head.newest_first if step is None else (with_step(head, step, run=log.run),)
    broken = 0
    for commit in commits:
        try:
            manifest = log.manifest(commit)
            for stored in manifest.shards:
                log.shard(manifest, stored.rank)
            console.print(f"step {commit.step} of attempt {commit.attempt}: whole, {len(manifest.shards)} shards")
        except Torn as error:
            broken += 1
            console.print(f"step {commit.step} of attempt {commit.attempt}: [red]broken[/]: {error}")
    if broken:
        raise typer.Exit(1)


@app.command(epilog="Example: [bold]dsec checkpoint export 3f2a weights/ --step 4000[/]")
def export(
    run: RunId,
    directory: Annotated[Path, typer.Argument(help="A new directory for the files.")],
    step: Annotated[int | None, typer.Option("--step", min=0, help="A step; the newest commit without it.")] = None,
    store: Store = None,
) -> None:
    """Write a commit as safetensors and JSON, for programs that know nothing of DSec."""
    from dsec_blocks.checkpoints import exporting
    from dsec_blocks.checkpoints.heads import with_step
    from dsec_blocks.model.errors import CheckpointMissing
    from dsec_deployments.cli.output import console

    place = _place(store)
    log = _log(place, _found(place, run))
    head = log.head()
    if not head.commits:
        raise CheckpointMissing(f"run {log.run}: there is no commit to export")
    commit = head.newest_first[0] if step is None else with_step(head, step, run=log.run)
    written = exporting.export(log, commit, directory)
    console.print(f"step {commit.step} of {log.run}: {len(written)} files in {directory}")


@app.command(epilog="Example: [bold]dsec checkpoint resume 3f2a --from 4000[/] (or [bold]--fresh[/]), then retry it")
def resume(
    run: RunId,
    step: Annotated[int | None, typer.Option("--from", min=0, help="The step to go back to.")] = None,
    fresh: Annotated[bool, typer.Option("--fresh", help="Start over at step 0, whatever was saved.")] = False,
    store: Store = None,
) -> None:
    """Make the next attempt of a run resume from an earlier step, or start over; until it does, all is kept."""
    from dsec_blocks.model.errors import CheckpointError
    from dsec_deployments.cli.output import console

    if (step is None) == (not fresh):
        raise CheckpointError("say which: --from STEP to go back to that step, or --fresh to start over at step 0")
    place = _place(store)
    log = _log(place, _found(place, run) if step is not None else _found_or_named_in_full(place, run))
    if step is not None:
        log.choose_step(step)
    else:
        log.start_over()
    what = f"resumes from step {step}" if step is not None else "starts over at step 0"
    console.print(
        f"the next attempt of {log.run} {what}: retry the run in the Prefect UI, or, if it is running, "
        f"`dsec evict {log.run[:8]}`"
    )


@app.command(epilog="Example: [bold]dsec checkpoint rm 3f2a --step 4000[/], or [bold]--all[/]")
def rm(
    run: RunId,
    step: Annotated[int | None, typer.Option("--step", min=0, help="The step whose commits go.")] = None,
    everything: Annotated[bool, typer.Option("--all", help="All checkpoints of the run, for good.")] = False,
    store: Store = None,
) -> None:
    """Remove the commits of one step, or all of a run that does not run."""
    from dsec_blocks.model.errors import CheckpointError
    from dsec_deployments.cli.output import console

    if (step is None) == (not everything):
        raise CheckpointError("say which: --step STEP for the commits of one step, or --all")
    place = _place(store)
    log = _log(place, _found(place, run))
    state = _state(log.run)
    if state is not None and (everything or log.head().base is not None):
        raise CheckpointError(
            f"run {log.run} is {state}: its checkpoints may be what it goes on from; cancel it first, or wait"
        )
    removed = log.remove_all() if everything else log.remove_step(step or 0)
    console.print(f"{log.run}: {removed} objects removed from {place.url}")


@app.command(epilog="Example: [bold]dsec checkpoint gc[/]")
def gc(
    store: Store = None,
    older_than_hours: Annotated[
        float, typer.Option("--older-than-hours", min=0, help="Age of unfinished uploads.")
    ] = 24,
) -> None:
    """Remove what dead writers left: unfinished uploads, and objects that no commit names any more."""
    from dsec_blocks.gateways.clock import SystemClock
    from dsec_deployments.cli.output import console

    place = _place(store)
    unfinished = place.drop_unfinished(before=SystemClock().now() - older_than_hours * 3600)
    objects = sum(_log(place, run).sweep() for run in _runs(place))
    console.print(f"{place.url}: {unfinished} unfinished uploads and {objects} objects removed")


def _place(store: str | None) -> Place:
    from dsec_blocks.checkpoints import open_store

    return open_store(store).open()


def _log(place: Place, run: str) -> CommitLog:
    from dsec_blocks.checkpoints.commit_log import CommitLog

    return CommitLog(place, run)


def _runs(place: Place) -> list[str]:
    return sorted({key.split("/")[1] for key in place.keys("ckpt/") if key.count("/") >= 2})


def _found(place: Place, run: str) -> str:
    from dsec_blocks.model.errors import CheckpointMissing

    runs = _runs(place)
    found = [run] if run in runs else [name for name in runs if name.startswith(run)]
    if len(found) == 1:
        return found[0]
    what = f"{len(found)} runs begin with it: {', '.join(found[:5])}" if found else "no run of that name has any"
    raise CheckpointMissing(f"checkpoints of {run!r} at {place.url}: {what}; `dsec checkpoint ls` lists them")


def _found_or_named_in_full(place: Place, run: str) -> str:
    """As `_found`; a store that lost everything of a run need not know it, but then its name has no abbreviation."""
    from uuid import UUID

    from dsec_blocks.model.errors import CheckpointMissing

    try:
        return _found(place, run)
    except CheckpointMissing:
        try:
            UUID(run.partition(".")[0])
        except ValueError:
            raise CheckpointMissing(f"checkpoints of {run!r} at {place.url}: none; give the run's whole id") from None
        return run


def _size(log: CommitLog, commit: Commit) -> int | None:
    from dsec_blocks.checkpoints.shards import Torn

    try:
        return sum(shard.size for shard in log.manifest(commit).shards)
    except Torn:
        return None


def _state(run: str) -> str | None:
    """How the ledger knows a run that has not ended; None when it does not, or there is no ledger here."""
    from dsec_blocks.model.errors import LedgerError
    from dsec_blocks.model.gangs import GangState
    from dsec_deployments.cli.session import session

    try:
        with session() as opened:
            gang = opened.ledger.gang(run.partition(".")[0])
    except LedgerError:
        return None
    return None if gang is None or gang.state is GangState.ENDED else str(gang.state.value)
