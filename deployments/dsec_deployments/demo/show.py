"""The show: set the stage, play the scenes in order, print the claims, write the report, leave nothing running."""

import dataclasses
import json
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from types import FrameType

from rich.console import Console
from rich.table import Table

from dsec_blocks.gateways import files
from dsec_blocks.gateways.clock import SystemClock
from dsec_blocks.model.errors import DsecError
from dsec_deployments.control_plane import simulated
from dsec_deployments.demo.claims import Claims
from dsec_deployments.demo.recording import Recorder
from dsec_deployments.demo.stage import POOL, SceneFailed, Stage, isolate, stage, sweep
from dsec_deployments.demo.venue import THIS_MACHINE, Venue

Scene = Callable[[Stage], None]


def run_demo(venue: Venue = THIS_MACHINE, *, keep: bool = False, only: list[str] | None = None) -> int:
    """Play the demo; 0 if every claim held. Ctrl-C and SIGTERM end it cleanly."""
    every = _scenes(venue)
    console = Console(highlight=False, soft_wrap=True, width=None if sys.stdout.isatty() else 120)
    scenes = [scene for scene in every if not only or scene.__name__ in only or scene.__name__.startswith("set_")]
    unknown = set(only or ()) - {scene.__name__ for scene in every}
    if unknown:
        names = ", ".join(scene.__name__ for scene in every)
        raise DsecError(f"--only: no scene {', '.join(sorted(unknown))}; scenes are {names}")
    home = (Path(".dsec") / venue.folder).absolute()
    isolate(home)
    signal.signal(signal.SIGTERM, _interrupt)
    if venue.kubernetes:
        with console.status("looking for the programs of a control plane") as status:
            simulated.require(progress=status.update)
    clock = SystemClock()
    began = clock.monotonic()
    console.print(f"[bold]DSec demo[/]: 3 nodes × 4 declared GPUs; a gang's members are {venue.members}")
    console.print(f"everything it makes is in {home}")
    with console.status("looking for the remains of an earlier demo") as status:

        def note(text: str) -> None:
            console.print(f"  [dim]{text}[/]")

        if home.exists():
            sweep(tell=status.update, note=lambda _: None)
            files.remove_tree(home, at="demo.home.clear")
        home.mkdir(parents=True)
        with stage(home, venue, keep=keep, tell=status.update, note=note) as set_up:
            console.print(f"  [dim]look around meanwhile: {set_up.prefect.ui_url}[/]")
            with Recorder(set_up.ledger, POOL, set_up.recording, clock=clock):
                for scene in scenes:
                    _play(scene, set_up, console)
            claims = set_up.claims
            seconds = round(clock.monotonic() - began, 1)
            if not only:
                longest = venue.longest_seconds * set_up.slowness
                beside = f"this machine took {set_up.slowness:.1f} times as long as an idle one"
                claims.make(
                    f"the demo takes at most {longest / 60:.2g} minutes",
                    seconds <= longest,
                    seconds,
                    "s",
                    remark=beside if set_up.slowness > 1 else "",
                )
            status.update("writing the report")
            _conclude(home, set_up)
            if keep:
                console.print(f"It stays up: {set_up.prefect.ui_url}; stop it with: DSEC_HOME={home} dsec down")
    _print(console, claims, home)
    return 0 if claims.all_held else 1


def _scenes(venue: Venue) -> list[Scene]:
    if venue.kubernetes:
        from dsec_deployments.demo.pods import SCENES_IN_PODS

        return SCENES_IN_PODS
    from dsec_deployments.demo.scenes import SCENES

    return SCENES


def _play(scene: Scene, stage: Stage, console: Console) -> None:
    title = (scene.__doc__ or scene.__name__).strip().splitlines()[0]
    console.print(f"[bold]{title}[/]")
    before = len(stage.claims.made)
    try:
        scene(stage)
    except SceneFailed as error:
        stage.claims.make(f"scene {scene.__name__}", False, remark=str(error))
    except Exception as error:
        if os.environ.get("DSEC_DEBUG"):
            raise
        # Whatever a scene stumbles over, the demo goes on, says so, and fails at its end.
        stage.claims.make(f"scene {scene.__name__}", False, remark=f"{type(error).__name__}: {error}")
    for claim in stage.claims.made[before:]:
        sign = "[green]✓[/]" if claim.held else "[red]✗[/]"
        figure = "" if claim.figure is None else f" [dim]({claim.figure:.6g} {claim.unit})[/]"
        console.print(f"  {sign} {claim.name}{figure}" + (f" [dim]{claim.remark}[/]" if claim.remark else ""))


def _conclude(home: Path, stage: Stage) -> None:
    from dsec_deployments.demo.report import write_report

    stage.claims.save(home / "claims.json")
    cast = json.dumps({name: run.id for name, run in stage.runs.items()}, indent=1)
    files.write(home / "cast.json", cast.encode(), at="demo.cast.write")
    recording = json.dumps(dataclasses.asdict(stage.recording), indent=1)
    files.write(home / "recording.json", recording.encode(), at="demo.recording.write")
    write_report(home / "report.html", stage.recording, stage.claims.made)


def _print(console: Console, claims: Claims, home: Path) -> None:
    table = Table(box=None, header_style="bold", pad_edge=False, padding=(0, 2, 0, 0))
    for column in ("", "claim"):
        table.add_column(column)
    table.add_column("figure", justify="right")
    table.add_column("")
    for claim in claims.made:
        sign = "[green]✓[/]" if claim.held else "[red]✗[/]"
        table.add_row(sign, claim.name, "" if claim.figure is None else f"{claim.figure:.6g}", claim.unit)
    console.print()
    console.print(table, soft_wrap=False)
    console.print(f"\n{sum(c.held for c in claims.made)} of {len(claims.made)} claims held")
    console.print(f"report: {home / 'report.html'}\nfigures: {home / 'claims.json'}")


def _interrupt(_signum: int, _frame: FrameType | None) -> None:
    print("stopping the demo …", file=sys.stderr)
    raise KeyboardInterrupt
