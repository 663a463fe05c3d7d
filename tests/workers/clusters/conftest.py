"""A real local cluster: one fork-server for the session, real processes, declared devices."""

import asyncio
import os
import sys
import textwrap
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from dsec_blocks.gateways import processes
from dsec_blocks.gateways.clock import SystemClock
from dsec_blocks.model.gangs import MemberPlacement, Placement
from dsec_blocks.model.notices import Notice, NoticeKind
from dsec_blocks.model.requests import GangRequest
from dsec_workers.clusters.local import LocalCluster
from dsec_workers.clusters.local.layout import GangDirectory, read_json
from dsec_workers.clusters.local.leftovers import leftovers_of
from dsec_workers.clusters.protocol import ClusterEvent, GangKey, Gone, LaunchOrder

PREAMBLE = """
import json, os, signal, subprocess, sys, time
from dsec_blocks.gang.channel import Channel
channel = Channel.connect(os.environ["DSEC_CHANNEL"])
channel.call("hello", role="rank" if "RANK" in os.environ else "flow", member=int(os.environ["DSEC_MEMBER"]),
             rank=int(os.environ.get("RANK", 0)))

def wait_for_notice():
    while channel.notice is None:
        time.sleep(0.005)
    return channel.notice

def run(argv, **fields):
    lines = list(channel.stream("run", call={"kind": "command", "argv": argv}, **fields))
    return sorted(lines[:-1], key=lambda line: line["rank"]), lines[-1]
"""
"""What every script of a gang begins with: connected and introduced."""

_numbers = count(1)


@dataclass
class Desk:
    """A test's place in a local cluster: makes orders, launches them, and collects what is told about each gang."""

    cluster: LocalCluster
    home: Path
    scripts: Path
    told: dict[GangKey, list[ClusterEvent]] = field(default_factory=dict)

    def script(self, text: str) -> str:
        """A Python program that speaks the channel, as a shell command."""
        path = self.scripts / f"script-{next(_numbers)}.py"
        path.write_text(PREAMBLE + textwrap.dedent(text))
        return str(path)

    def order(
        self,
        program: str = "",
        *,
        command: str | None = None,
        devices: Sequence[Sequence[str]] = ((),),
        env: Mapping[str, str] | None = None,
        **fields: Any,
    ) -> LaunchOrder:
        """An order for a gang with one member per entry of `devices`, running a Python program or a command."""
        number = next(_numbers)
        members = tuple(MemberPlacement(node=f"node-{i}", devices=tuple(uuids)) for i, uuids in enumerate(devices))
        return LaunchOrder(
            key=GangKey(f"run-{os.getpid()}-{number}", 1),
            name=f"run-{number}",
            request=GangRequest(nodes=len(devices), devices_per_node=len(devices[0]), grace_seconds=5.0),
            placement=Placement(members=members),
            env={**_bare_environment(), "PYTHON": sys.executable, **(env or {})},
            command=command if command is not None else f"exec {sys.executable} {self.script(program)}",
            **fields,
        )

    async def run(self, order: LaunchOrder) -> Gone:
        """Launch, and wait until the gang is gone."""
        await self.cluster.launch(order)
        return await self.gone(order.key)

    async def until(self, key: GangKey, kind: type[ClusterEvent], seconds: float = 20.0) -> Any:
        """The first event of a kind that was told about a gang."""
        async with asyncio.timeout(seconds):
            while True:
                for event in self.told.get(key, []):
                    if isinstance(event, kind):
                        return event
                await asyncio.sleep(0.005)

    async def gone(self, key: GangKey, seconds: float = 20.0) -> Gone:
        return await self.until(key, Gone, seconds)

    async def said(self, key: GangKey, text: str, *, log: str = "flow", seconds: float = 20.0) -> str:
        """The log, once it holds `text`."""
        async with asyncio.timeout(seconds):
            while text not in (content := self.log(key, log)):  # noqa: ASYNC110
                await asyncio.sleep(0.01)
        return content

    def log(self, key: GangKey, name: str = "flow") -> str:
        path = self.directory(key).log(name)
        return path.read_text() if path.exists() else ""

    def directory(self, key: GangKey) -> GangDirectory:
        return GangDirectory.of(self.home, key)

    def left(self, key: GangKey) -> list[int]:
        """The gang's processes that run now."""
        return [row.pid for row in leftovers_of(key, directory=self.directory(key).path, supervisor=None)]

    async def is_cleared(self, key: GangKey) -> bool:
        """Whether none of its processes is left; its supervisor, having said so, may take a moment to leave."""
        record = read_json(self.directory(key).supervisor) or {}
        for _ in range(200):
            left = self.left(key)
            if not left:
                return True
            if left != [record["process"]["pid"]]:
                return False
            await asyncio.sleep(0.02)
        return False

    def holds(self, uuid: str) -> bool:
        """Whether somebody holds the device (checked the only honest way: by trying)."""
        lock = processes.hold_lock(self.home / "devices" / f"{uuid}.lock", blocking=False, at="test.lock")
        if lock is None:
            return True
        os.close(lock)
        return False


def notice(seconds: float, kind: NoticeKind = NoticeKind.EVICT, attempt: int = 1) -> Notice:
    return Notice(kind=kind, reason="a test needs the devices", deadline=SystemClock().now() + seconds, attempt=attempt)


def _bare_environment() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if not name.startswith(("PREFECT_", "DSEC_"))}


@pytest.fixture(scope="session")
def cluster_home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    home = tmp_path_factory.mktemp("cluster")
    yield home
    asyncio.run(LocalCluster(home=home, nodes=(), clock=SystemClock()).shutdown(grace_seconds=0.5))


@pytest.fixture
def open_desk(tmp_path: Path) -> Callable[[Path], Desk]:
    def open_at(home: Path) -> Desk:
        return Desk(cluster=LocalCluster(home=home, nodes=(), clock=SystemClock()), home=home, scripts=tmp_path)

    return open_at


@pytest.fixture
async def desk(cluster_home: Path, open_desk: Callable[[Path], Desk]) -> AsyncIterator[Desk]:
    opened = open_desk(cluster_home)
    await opened.cluster.prepare()
    listening = asyncio.create_task(listen(opened))
    yield opened
    listening.cancel()
    for key in list(opened.told):
        await opened.cluster.stop(key, 0.0)
    await opened.cluster.close()


async def listen(desk: Desk) -> None:
    """Collect the cluster's events until cancelled."""
    async for event in desk.cluster.events():
        desk.told.setdefault(event.key, []).append(event)
