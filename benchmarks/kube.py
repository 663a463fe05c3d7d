"""Our Kubernetes adapter beside plain Jobs and Kueue, on this repository's real control plane with KWOK nodes.

    python -m benchmarks.kube
    python -m benchmarks.kube --resume
    python -m benchmarks.kube --only a,b --scale 0.1 --systems plain,kueue,ours,prefect

For each scenario and each system a fresh control plane is started, filled with nodes and loaded; a process of its own
watches the pods and takes the times. All that is compared comes first, then the same through Prefect. Each row is kept
as soon as it is there, so that `--resume` goes on after a cut. A run at another scale, or with parts left out, is
written to `kube-part.json`.
"""

import argparse
import asyncio
import signal
import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from typing import Any

from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from benchmarks import kube_kueue, kube_peers
from benchmarks.kube_children import Engine, Observer, engine, observer
from benchmarks.kube_parts import Key, Parts
from benchmarks.kube_plane import Site, site
from benchmarks.kube_shapes import (
    KUEUE,
    OURS,
    PREFECT,
    SYSTEMS,
    Batch,
    Scenario,
    bounds,
    figures,
    for_system,
    letters,
    overcommitted,
    scenarios,
)
from benchmarks.kube_through_prefect import ThroughPrefect, through_prefect, where
from benchmarks.report import publish
from dsec_deployments.control_plane import binaries

AIMS = {
    "jobs4000_wall_vs_kueue": "≤ 0.5",
    "jobs4000_wall_vs_plain": "≤ 1.0",
    "gang512_wall_vs_kueue": "≤ 0.9",
    "reclaim1_vs_kueue": "≤ 0.9",
    "reclaim2000_vs_kueue": "≤ 0.5",
    "baseline15000_wall_vs_kueue": "≤ 0.5",
}
REST_SECONDS, REST_CORES, REST_AT_MOST_SECONDS = 5.0, 0.3, 120.0
"""Between filling a cluster and what is measured, for every system: until all processes together use less than that for
so long. The controllers still write down what followed the last starts: whoever filled it faster has more of that."""
SPOKEN_SECONDS = 10.0
Send = Callable[[Sequence[Batch]], Awaitable[None]]


@dataclass(frozen=True, kw_only=True)
class Options:
    """What the command line says, as far as a measurement needs it."""

    patience_seconds: float
    ledger: str


async def opened(
    system: str, here: Site, scenario: Scenario, options: Options, stack: AsyncExitStack
) -> tuple[Send, Engine | ThroughPrefect | None]:
    """The system, started on the control plane: how to submit to it, and what is ours of it."""
    if system == PREFECT:
        flows = await stack.enter_async_context(through_prefect(here, scenario, ledger=options.ledger))
        return flows.send, flows
    if system == OURS:
        ours = await stack.enter_async_context(engine(here, ledger=options.ledger, quotas=scenario.quotas))
        return ours.send, ours
    if system == KUEUE:
        await stack.enter_async_context(kube_kueue.manager(here, gpus=scenario.gpus, quotas=scenario.quotas))

    async def send(batches: Sequence[Batch]) -> None:
        await kube_peers.submit(here, batches, for_kueue=system == KUEUE)

    return send, None


async def at_rest(here: Site) -> float:
    """Wait until the control plane and the system on it have nothing more to do; how long that took."""
    began, before = time.monotonic(), sum(here.cpu_seconds().values())
    while True:
        await asyncio.sleep(REST_SECONDS)
        now, waited = sum(here.cpu_seconds().values()), time.monotonic() - began
        if now - before < REST_CORES * REST_SECONDS or waited > REST_AT_MOST_SECONDS:
            return round(waited, 1)
        before = now


async def measure(
    scenario: Scenario, system: str, options: Options, told: Callable[[str, int, int], None]
) -> dict[str, Any]:
    """One row: how long the last step took, from its first create until its last pod was seen Running (or ended)."""
    scenario = for_system(scenario, system)
    row: dict[str, Any] = {"scenario": scenario.name, "system": system, "wall_s": None}
    spent: dict[str, float] = {}
    steps = [scenario.batches] if scenario.quotas else [(batch,) for batch in scenario.batches]
    what = "ended" if scenario.quotas else "running"
    async with AsyncExitStack() as stack:
        told("starting", 0, 1)
        here = await stack.enter_async_context(site(scenario.nodes, scenario.gpus_per_node))
        send, ours = await opened(system, here, scenario, options, stack)
        watching: Observer = await stack.enter_async_context(observer(here))
        for number, step in enumerate(steps):
            name, pods, gangs = "+".join(b.name for b in step), sum(b.pods for b in step), sum(b.gangs for b in step)
            if number:
                row["rest_s"] = await at_rest(here)
            cpu, requests, began = here.cpu_seconds(), await here.requests(), time.time()
            sending = asyncio.create_task(send(step))
            try:
                seen = await watching.until(
                    what, step, lambda n, name=name, pods=pods: told(name, n, pods), seconds=options.patience_seconds
                )
            except TimeoutError as error:
                row["note"] = str(error)
                if number == len(steps) - 1:
                    row["given_up_s"] = options.patience_seconds
                sending.cancel()
                break
            await sending
            wall = max(each["ended_at" if scenario.quotas else "at"] for each in seen.values()) - began
            if number == len(steps) - 1:
                first = min(each["first"] for each in seen.values()) - began
                row |= {"wall_s": round(wall, 3), "first_pod_s": round(first, 3)}
                row["admissions_per_s"] = round(gangs / wall, 1)
                row["requests_per_gang"] = round((await here.requests() - requests) / gangs, 1)
                pods_there, _ = await here.api.list("/api/v1/pods")
                row["overcommitted_nodes"] = len(overcommitted(pods_there, gpus_per_node=scenario.gpus_per_node))
                if len(step) > 1:
                    means = [f"{name} {each['mean'] - began:.1f}" for name, each in seen.items()]
                    row["mean_start_s"] = " ".join(means)
            else:
                row[f"{name}_s"] = round(wall, 3)
            spent = {name: round(after - cpu.get(name, 0.0), 1) for name, after in here.cpu_seconds().items()}
        row["cpu_s"] = " ".join(f"{name.removeprefix('kube-')} {seconds:g}" for name, seconds in spent.items())
        if ours is not None:
            row["profile"] = await ours.finish()
            if isinstance(ours, ThroughPrefect):
                row |= where(row["profile"], began=began)
    return row


def order_of(chosen: list[Scenario], systems: list[str]) -> list[tuple[Scenario, str]]:
    """What is measured, one after the other: first what is compared, scenario by scenario, then through Prefect."""
    compared = [each for each in SYSTEMS if each != PREFECT]
    return [
        (scenario, system)
        for some in (compared, [PREFECT])
        for scenario in chosen
        for system in some
        if system in systems and system in scenario.systems
    ]


async def everything(
    work: list[tuple[Scenario, str, Key]], options: Options, parts: Parts, *, resumed: dict[Key, dict[str, Any]]
) -> list[dict[str, Any]]:
    """All rows, in order; each is said and kept when it is known. SIGTERM ends it as Ctrl-C does, with nothing left
    running.
    """
    rows: list[dict[str, Any]] = []
    measuring = asyncio.current_task()
    assert measuring is not None
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, measuring.cancel)
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns) as progress:
        for scenario, system, key in work:
            if key in resumed:
                progress.console.print(f"{scenario.name} {system}: measured before, {resumed[key]['wall_s']} s")
                rows.append(resumed[key])
                continue
            task = progress.add_task(f"{scenario.name} {system}", total=None)
            spoken = Spoken(f"{scenario.name} {system}", say=progress.console.print)

            def told(what: str, done: int, total: int, *, task: Any = task, spoken: Spoken = spoken) -> None:
                progress.update(task, description=f"{spoken.name}: {what}", completed=done, total=total)
                if not progress.console.is_terminal:
                    spoken(what, done, total)

            rows.append(await attempted(scenario, system, options, told))
            parts.keep(key, rows[-1])
            progress.console.print({name: value for name, value in rows[-1].items() if name != "profile"})
    return rows


@dataclass
class Spoken:
    """Progress in lines, where no bar can be drawn: each new step, and then every ten seconds."""

    name: str
    say: Callable[[str], None]
    _step: str = ""
    _at: float = 0.0

    def __call__(self, what: str, done: int, total: int) -> None:
        """So far."""
        now = time.monotonic()
        if what != self._step or now - self._at >= SPOKEN_SECONDS:
            self._step, self._at = what, now
            self.say(f"{self.name}: {what}, {done} of {total}")


async def attempted(
    scenario: Scenario, system: str, options: Options, told: Callable[[str, int, int], None]
) -> dict[str, Any]:
    """The row of `measure`; one that failed has a note that says why, and takes nothing from the others."""
    try:
        return await measure(scenario, system, options, told)
    except Exception as error:  # noqa: BLE001 - whatever a peer or a program of the control plane fails of
        note = f"{type(error).__name__}: {error}"
        name = for_system(scenario, system).name
        return {"scenario": name, "system": system, "wall_s": None, "note": note, "failed": True}


def main() -> None:
    """Parse, measure, publish."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.kube", description=__doc__.splitlines()[0])
    parser.add_argument("--only", default=",".join(scenarios()), help="scenarios, for example a,b (default: all)")
    parser.add_argument("--systems", default=",".join(SYSTEMS), help=f"of {', '.join(SYSTEMS)} (default: all)")
    parser.add_argument("--scale", type=float, default=1.0, help="part of the full size (default: 1)")
    parser.add_argument("--patience", type=float, default=900.0, help="seconds for one batch before it is given up")
    parser.add_argument("--ledger", choices=("sqlite", "postgres"), default="postgres", help="ours; both are durable")
    parser.add_argument("--resume", action="store_true", help="leave out what was measured in the last 12 hours")
    given = parser.parse_args()
    try:
        names = letters(given.only)
    except ValueError as error:
        parser.error(str(error))
    systems = [each.strip() for each in given.systems.split(",") if each.strip()]
    if not systems or set(systems) - set(SYSTEMS):
        parser.error(f"--systems {given.systems}: name some of {', '.join(SYSTEMS)}")
    if not 0 < given.scale <= 1:
        parser.error(f"--scale {given.scale:g}: write a number above 0, at most 1")
    chosen = [scenarios(given.scale)[name] for name in names]
    wanted, not_there = systems, [f"{each}, which was not asked for" for each in SYSTEMS if each not in systems]
    parts = Parts()
    try:
        binaries.provide(progress=print)
        lacking = kube_kueue.why_not(print) if KUEUE in systems else None
        if lacking is not None:
            systems = [each for each in systems if each != KUEUE]
            not_there.append(f"Kueue {kube_kueue.VERSION}, and so every figure that compares with it: {lacking}")
            print(f"not measured: {not_there[-1]}")
        options = Options(patience_seconds=given.patience, ledger=given.ledger)
        work = [
            (scenario, system, (given.scale, given.ledger, scenario.name, system))
            for scenario, system in order_of(chosen, systems)
        ]
        resumed = parts.fresh(key for _, _, key in work) if given.resume else {}
        rows = asyncio.run(everything(work, options, parts, resumed=resumed))
    except binaries.MissingBinaries as error:
        raise SystemExit(str(error)) from error
    except (KeyboardInterrupt, asyncio.CancelledError):
        raise SystemExit(
            "interrupted; nothing is left running, and what was finished is kept: --resume goes on from there"
        ) from None
    walls = {(row["scenario"], row["system"]): row["wall_s"] for row in rows if row["wall_s"] is not None}
    whole = given.scale == 1.0 and set(names) == set(scenarios()) and set(wanted) >= {*SYSTEMS} - {PREFECT}
    profiles = {f"{row['scenario']} {row['system']}": row.pop("profile") for row in rows if "profile" in row}
    given_up = {(row["scenario"], row["system"]): row["given_up_s"] for row in rows if row.get("given_up_s")}
    at_most = bounds(walls, given_up)
    found = {
        **figures(walls, given_up),
        **{f"{scenario}_{system}_s": wall for (scenario, system), wall in walls.items()},
    }
    if given.scale < 1.0:
        print(f"at scale {given.scale:g}: the names of figures are those of the full size, their loads are not")
    elif not whole:
        print("a part of the whole, at full size: written beside the whole run's file, not into it")
    if not_there:
        print("not there: " + "; ".join(not_there))
    for name, why in at_most.items():
        print(f"{name}: {why}")
    publish(
        "kube" if whole else "kube-part",
        found,
        aims=AIMS if given.scale == 1.0 else {},
        units={n: "s" if n.endswith("_s") else f"ours ÷ theirs{', at most' * (n in at_most)}" for n in found},
        context={
            "scale": given.scale, "ledger": given.ledger, "kueue": kube_kueue.VERSION,
            "kubernetes": binaries.KUBERNETES_VERSION, "not there": not_there, "at most": at_most,
            "profile": profiles,
        },
        rows=_even(rows),
    )  # fmt: skip


def _even(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Rows with the same columns, for the table."""
    names = dict.fromkeys(name for row in rows for name in row)
    return [{name: "" if row.get(name) is None else row[name] for name in names} for row in rows]


if __name__ == "__main__":
    main()
