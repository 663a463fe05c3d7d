"""The benchmark's own processes: the observer that takes the times, and our engine."""

import asyncio
import json
import os
import sys
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import ExitStack, asynccontextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.kube_plane import Site, last_words
from benchmarks.kube_shapes import Batch, Quotas
from benchmarks.servers import postgres

START_SECONDS = 60.0
FINISH_SECONDS = 30.0
LINE_BYTES = 2**20


@dataclass(kw_only=True)
class Child:
    """A process that says JSON lines. `log` has what it says beside them."""

    process: asyncio.subprocess.Process
    log: Path

    async def said(self, *, seconds: float) -> dict[str, Any]:
        """Its next line.

        Raises `RuntimeError` when it has ended, `TimeoutError` when it is silent.
        """
        assert self.process.stdout is not None
        line = await asyncio.wait_for(self.process.stdout.readline(), seconds)
        if not line:
            raise RuntimeError(f"{self.log.stem} ended: {last_words(self.log)}")
        found: dict[str, Any] = json.loads(line)
        return found


@dataclass(kw_only=True)
class Observer(Child):
    """What was seen Running, by someone who has nothing to do with any of the systems."""

    seen: dict[str, dict[str, Any]] = field(default_factory=dict)

    async def until(
        self, what: str, batches: Sequence[Batch], told: Callable[[int], None], *, seconds: float
    ) -> dict[str, dict[str, Any]]:
        """What was seen of each batch once all their pods are `running`, or have `ended`.

        Raises `TimeoutError` that says how many were.
        """
        deadline = time.monotonic() + seconds
        while True:
            found = {batch.name: self.seen.get(batch.name, {"running": 0, "ended": 0}) for batch in batches}
            told(sum(each[what] for each in found.values()))
            if all(found[batch.name][what] >= batch.pods for batch in batches):
                return found
            left = deadline - time.monotonic()
            try:
                self.seen = await self.said(seconds=max(0.0, left))
            except TimeoutError:
                counts = ", ".join(
                    f"{found[batch.name][what]} of {batch.pods} pods of {batch.name}" for batch in batches
                )
                raise TimeoutError(f"{counts} were {what} within {seconds:.0f} s") from None


@dataclass(kw_only=True)
class Engine(Child):
    """Our engine."""

    async def send(self, batches: Sequence[Batch]) -> None:
        """Give it batches; comes back when all of them are in the ledger's queue."""
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps([asdict(batch) for batch in batches]).encode() + b"\n")
        await self.process.stdin.drain()
        await self.said(seconds=START_SECONDS)

    async def finish(self) -> dict[str, Any]:
        """Where its time went."""
        assert self.process.stdin is not None
        self.process.stdin.close()
        while "seconds" not in (found := await self.said(seconds=FINISH_SECONDS)):
            pass  # what nobody has waited for
        return found


@asynccontextmanager
async def observer(here: Site) -> AsyncIterator[Observer]:
    """One that watches already."""
    async with process(here, "kube_observer", here.plane.kubeconfig) as (observing, log):
        watching = Observer(process=observing, log=log)
        await watching.said(seconds=START_SECONDS)
        yield watching


@asynccontextmanager
async def engine(here: Site, *, ledger: str, quotas: Quotas | None = None) -> AsyncIterator[Engine]:
    """One that leads, on a ledger with nothing but the teams of `quotas`."""
    with ExitStack() as stack:
        if ledger == "postgres":
            url = stack.enter_context(postgres(here.home / "postgres"))
        else:
            url = f"sqlite:///{here.home}/ledger.db"
        told = () if quotas is None else (json.dumps(asdict(quotas)),)
        async with process(here, "kube_engine", here.plane.kubeconfig, url, *told) as (leading, log):
            ours = Engine(process=leading, log=log)
            await ours.said(seconds=START_SECONDS)
            here.pids |= {"ours": leading.pid, **postgres_pid(here.home / "postgres")}
            yield ours


def postgres_pid(postgres_home: Path) -> dict[str, int]:
    """The PostgreSQL server in that folder, for whoever counts processor time; nothing where there is none."""
    lock = postgres_home / "postmaster.pid"
    return {"postgres": int(lock.read_text().split()[0])} if lock.exists() else {}


@asynccontextmanager
async def process(
    here: Site, name: str, *words: str, env: Mapping[str, str] | None = None
) -> AsyncIterator[tuple[asyncio.subprocess.Process, Path]]:
    """A program of the benchmarks and its log; stopped at the end."""
    log = here.home / f"{name}.log"
    with log.open("wb") as output:
        started = await asyncio.create_subprocess_exec(
            sys.executable, "-m", f"benchmarks.{name}", *words,
            stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE, stderr=output, limit=LINE_BYTES,
            start_new_session=True, env={**(os.environ if env is None else env), "DO_NOT_TRACK": "1"},
        )  # fmt: skip
    try:
        yield started, log
    finally:
        if started.returncode is None:
            started.terminate()
            try:
                await asyncio.wait_for(started.wait(), FINISH_SECONDS)
            except TimeoutError:
                started.kill()
                await started.wait()
