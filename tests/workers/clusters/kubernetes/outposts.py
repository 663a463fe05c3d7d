"""Outposts as plain processes of this machine, each on a loopback address of its own: a gang in pods without pods."""

import itertools
import os
import signal
import subprocess
import sys
import textwrap
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from dsec_blocks.gateways import processes
from dsec_workers.clusters.kubernetes import talk
from dsec_workers.clusters.kubernetes.manifest import jobs_of
from dsec_workers.clusters.kubernetes.outpost.identity import gang_token
from dsec_workers.clusters.kubernetes.outpost.termination import decode
from dsec_workers.clusters.kubernetes.settings import SCRATCH, TERMINATION_LOG, KubernetesSettings
from dsec_workers.clusters.local.layout import GangDirectory
from dsec_workers.clusters.protocol import LaunchOrder
from dsec_workers.clusters.talk import NotThere
from tests.fixtures.ports import free_port
from tests.workers.clusters.conftest import PREAMBLE
from tests.workers.clusters.kubernetes.conftest import until

KEY = "the key of a test's namespace"
_hosts = itertools.count(2)


@dataclass
class Outposts:
    """The outposts of one gang."""

    order: LaunchOrder
    folder: Path
    port: int = field(default_factory=free_port)
    secret: Mapping[str, str] = field(default_factory=dict)
    """What their namespace's Secret holds besides the key."""
    environment: Mapping[str, str] = field(default_factory=dict)
    """More of it, for every pod."""
    own_environment: Mapping[int, Mapping[str, str]] = field(default_factory=dict)
    """And more for some."""
    addresses: list[str] = field(default_factory=list)
    processes: list["subprocess.Popen[bytes]"] = field(default_factory=list)
    there_before: frozenset[str] = frozenset()
    """Processes of others, which are looked at again and again otherwise."""

    def start(self, devices: Mapping[int, str] = {}) -> None:
        """Start one outpost a member, as its pod's manifest says."""
        settings = KubernetesSettings(pool="gpus", port=self.port, pull_seconds=0.0)
        self.there_before = frozenset(os.listdir("/proc"))
        for index, job in enumerate(jobs_of(self.order, settings, namespace="x")):
            container = job["spec"]["template"]["spec"]["containers"][0]
            home = self.folder / f"pod-{index}"
            home.mkdir()
            address = f"127.77.{os.getpid() % 250}.{next(_hosts)}"
            env = {
                "PATH": os.environ["PATH"],
                "HOME": str(home),
                "NVIDIA_VISIBLE_DEVICES": devices.get(index, "void"),
                **{each["name"]: each["value"].replace("$$", "$") for each in container["env"] if "value" in each},
                "DSEC_OUTPOST_ADDRESS": address,
                "DSEC_CHANNEL_KEY": KEY,
                **self.secret,
                **self.environment,
                **self.own_environment.get(index, {}),
                "DSEC_TERMINATION_LOG": str(home / "termination-log"),
            }
            log = str(home / "termination-log")
            for theirs, here in ((TERMINATION_LOG, log), (f"{SCRATCH}/", f"{home}/"), (f'"{SCRATCH}"', f'"{home}"')):
                env = {name: value.replace(theirs, here) for name, value in env.items()}
            env["DSEC_SCRATCH"] = str(home)
            with (self.folder / f"pod-{index}.out").open("wb") as output:
                self.processes.append(
                    subprocess.Popen(
                        [sys.executable, *container["command"][1:]],
                        env=env,
                        stdout=output,
                        stderr=output,
                        start_new_session=True,
                    )
                )
            self.addresses.append(address)

    @property
    def token(self) -> str:
        return gang_token(KEY, self.order.key)

    @property
    def leader(self) -> talk.Address:
        return talk.Address(host=self.addresses[0], port=self.port, token=self.token)

    async def ask(self, op: str, **fields: Any) -> dict[str, Any]:
        """Ask member 0's outpost, once it listens."""

        async def answer() -> dict[str, Any] | None:
            try:
                return await talk.call(self.leader, {"op": op, **fields}, timeout_seconds=60.0)
            except NotThere:
                assert self.processes[0].poll() is None, self.output(0)
                return None

        return await until(answer)

    async def introduce(self) -> None:
        await self.ask("introduce", members={str(i): a for i, a in enumerate(self.addresses) if i})

    async def events(self) -> list[dict[str, Any]]:
        return (await self.ask("status"))["events"]

    async def until_event(self, kind: str) -> dict[str, Any]:
        async def told() -> dict[str, Any] | None:
            return next((event for event in await self.events() if event["type"] == kind), None)

        return await until(told)

    async def exits(self) -> list[int]:
        """The outposts' exit codes, once all have ended."""
        await until(lambda: all(process.poll() is not None for process in self.processes))
        return [process.returncode for process in self.processes]

    async def exits_of(self, index: int) -> int:
        """One outpost's exit code, once it has ended."""
        await until(lambda: self.processes[index].poll() is not None)
        return self.processes[index].returncode

    def last_word(self) -> dict[str, Any]:
        """The `gone` record in member 0's termination message."""
        path = self.folder / "pod-0" / "termination-log"
        return next(event for event in decode(path.read_text()) if event["type"] == "gone")

    def output(self, index: int) -> str:
        return (self.folder / f"pod-{index}.out").read_text(errors="replace")

    def directory(self, index: int) -> GangDirectory:
        return GangDirectory.of(self.folder / f"pod-{index}", self.order.key)

    def left_in(self, index: int) -> list[int]:
        """Processes of a pod that are alive, its outpost among them."""
        home = str(self.folder / f"pod-{index}")
        new = [int(entry) for entry in {*os.listdir("/proc")} - self.there_before if entry.isdigit()]
        alive = [row.pid for pid in new if (row := processes.sighting(pid)) is not None and not row.is_zombie]
        return [pid for pid in alive if processes.environment(pid).get("DSEC_SCRATCH") == home]

    def close(self) -> None:
        for process in self.processes:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()


def script(folder: Path, text: str) -> str:
    """A shell command that runs a Python program which speaks the gang channel."""
    path = folder / "flow.py"
    path.write_text(PREAMBLE + textwrap.dedent(text))
    return f"exec {sys.executable} {path}"
