"""A world in which one story is told while something fails: real server, real ledger, real processes, one home.

It arms a fault, restarts workers that die, and lets a stopped process sleep until its successor has taken over.
"""

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from dsec_blocks.gateways import processes
from dsec_blocks.gateways.faults import ENV_FAULT_LOG, ENV_FAULT_ONCE
from dsec_blocks.gateways.processes import ProcessId
from dsec_blocks.model.names import ENV_FAULT, ENV_HOME
from dsec_workers.clusters.local.layout import socket_path
from tests.crash.sightings import DeviceWatch, all_stopped, describe, is_below, processes_of, resume
from tests.integration.site import LEDGER_LOOK_SECONDS, PATIENCE, TERMINAL, Site

FLOWS = Path(__file__).parent / "flows"
LEASE_TTL_SECONDS = 2.5
SUCCESSOR_SECONDS = 9.0
"""How long a stopped worker sleeps at most: with SQLite it may hold the write lock, and then nobody takes over."""
NAP_SECONDS = 1.5
"""How long any other stopped process sleeps."""
RESTARTS = 6
BUNDLE = {"weights.bin": bytes(range(251)) * 400, "sub/config.json": b'{"layers": 2}', "sub/empty": b""}


@dataclass(frozen=True, slots=True, kw_only=True)
class Strike:
    """What fails, how, and at which visit (0: the first of any process)."""

    point: str
    mode: str
    visit: int = 0

    def __str__(self) -> str:
        return f"{self.point}:{self.mode}" + (f":{self.visit}" if self.visit else "")


@dataclass
class World(Site):
    """A site that is meant to be struck."""

    nodes: int = 2
    gpus: int = 2
    strike: Strike | None = None
    fork_server: str = "fork-server"
    """What kind of fork-server is there before the worker: empty for none, so that the worker starts one."""
    aside: str = ""
    """Faults that belong to the story."""
    second: Strike | None = None
    """What strikes the workers that are started after the first strike."""
    forgives: tuple[str, ...] = ()
    """Final states that every run of this world may have besides those that the story expects."""
    may_repeat: bool = True
    """Whether a run may execute a step again in a later attempt."""
    runs: dict[str, dict[str, Any]] = field(default_factory=dict)
    """Runs submitted, with what the story said about each."""
    living: list[ProcessId] = field(default_factory=list)
    by_holder: dict[str, ProcessId] = field(default_factory=dict)
    """Every worker there was, by the name it leads under."""
    told: list[str] = field(default_factory=list)
    """What the world did, for a failure's message."""
    started: int = 0
    is_watching: bool = False
    devices: DeviceWatch | None = None
    _watch: threading.Thread | None = None
    _over: threading.Event = field(default_factory=threading.Event)
    _began: float = field(default_factory=time.monotonic)

    def __post_init__(self) -> None:
        super().__post_init__()
        self.once.mkdir()
        self.store.mkdir()
        for name, content in BUNDLE.items():
            path = self.bundle / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content)
        self.devices = DeviceWatch(ledger=self.ledger, pool=self.pool, devices=self.home / "devices")

    # --- what fails ---------------------------------------------------------------------------------------------

    @property
    def once(self) -> Path:
        return self.home / "struck"

    @property
    def store(self) -> Path:
        return self.home / "store"

    @property
    def bundle(self) -> Path:
        """What every training run reads."""
        return self.home / "origin"

    @property
    def passed(self) -> Path:
        """The log of fault points passed."""
        return self.home / f"passed-{self.started if self.is_idle else 0}"

    is_idle: bool = False

    @property
    def was_struck(self) -> bool:
        return self.strike is not None and (self.once / self.strike.point).exists()

    def fault_environment(self) -> dict[str, str]:
        environment = {ENV_FAULT_LOG: str(self.passed), ENV_FAULT_ONCE: str(self.once)}
        second = self.second if self.was_struck else None
        faults = ",".join(filter(None, [self.aside, str(self.strike or ""), str(second or "")]))
        return {**environment, ENV_FAULT: faults} if faults else environment

    def points_passed(self) -> set[str]:
        with suppress(FileNotFoundError):
            return set(self.passed.read_text().split())
        return set()

    def tell(self, text: str) -> None:
        self.told.append(f"{time.monotonic() - self._began:5.1f} s  {text}")

    # --- workers ------------------------------------------------------------------------------------------------

    def begin(self) -> None:
        """The fork-server, a worker, and somebody who watches."""
        assert self.devices is not None
        (self.home / "devices").mkdir(exist_ok=True)
        self.devices.start()
        self.new_worker()
        self.is_watching = True
        self._watch = threading.Thread(target=self._watch_over, name=f"watch {self.pool}", daemon=True)
        self._watch.start()

    def environment_of_worker(self) -> dict[str, str]:
        kept = {k: v for k, v in os.environ.items() if not k.startswith(("DSEC_", "PREFECT_"))}
        return {
            **kept,
            **self.server.environment,
            ENV_HOME: str(self.home),
            "DSEC_LEDGER_URL": self.ledger_url,
            "DSEC_NODES": str(self.nodes),
            "DSEC_GPUS_PER_NODE": str(self.gpus),
            "DSEC_LEASE_TTL": str(LEASE_TTL_SECONDS),
            "DSEC_SWEEP": "2",
            "DSEC_POLL": "0.5",
            "DSEC_HOLDER": f"worker-{self.started}",
            "PREFECT_API_URL": self.api_url,
            "PREFECT_WORKER_HEARTBEAT_SECONDS": "5",
            **self.environment,
            **self.fault_environment(),
        }

    def new_worker(self, **environment: str) -> ProcessId:
        env = {**self.environment_of_worker(), **environment}
        log = self.home / f"worker-{self.started}.log"
        self.started += 1
        if self.zygote is None:
            process = subprocess.Popen(
                [sys.executable, "-m", "prefect", "worker", "start", "-p", self.pool, "--type", "dsec-gang"],
                env=env, stdout=log.open("wb"), stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL,
                start_new_session=True,
            )  # fmt: skip
            self.workers.append(process)
            found = processes.identify(process.pid)
        else:
            if self.fork_server:
                self.zygote.fork_a_fork_server(self.home, env, kind=self.fork_server)
            found = self.zygote.fork("worker", env=env, log=log, argument=self.pool)
        self.living.append(found)
        self.by_holder[env["DSEC_HOLDER"]] = found
        self.tell(f"worker {self.started - 1} starts (pid {found.pid})")
        return found

    def worker_log(self, number: int = -1) -> str:
        logs = sorted(self.home.glob("worker-*.log"), key=lambda path: int(path.stem.split("-")[1]))
        return logs[number].read_text(errors="replace") if logs else ""

    def wait(
        self, what: str, condition: Callable[[], Any], seconds: float = 45.0, *, every: float = LEDGER_LOOK_SECONDS
    ) -> Any:
        deadline = time.monotonic() + seconds * PATIENCE
        while time.monotonic() < deadline:
            found = condition()
            if found:
                return found
            time.sleep(every)
        raise AssertionError(f"not within {seconds:g} s: {what}")

    def leader(self) -> str | None:
        lease = self.ledger.lease(self.pool)
        return None if lease is None or lease.released else lease.holder

    def wait_until_led(self, by: str | None = None) -> None:
        self.wait("a worker to lead", lambda: (h := self.leader()) and (by is None or h == by))

    def kill_worker(self) -> None:
        """Kill -9 to the newest worker; the watch starts the next."""
        self.tell("the story kills the worker")
        processes.signal_process(self.living[-1], signal.SIGKILL, at="crash.test")

    def _watch_over(self) -> None:
        while not self._over.wait(0.1):
            try:
                self._look()
            except Exception as error:
                self.tell(f"the watch stumbled: {error!r}")

    def _look(self) -> None:
        dead = [process for process in self.living if not processes.is_alive(process)]
        for process in dead:
            self.living.remove(process)
            self.tell(f"worker with pid {process.pid} is dead")
        for popen in self.workers:
            popen.poll()
        if not self.living and self.is_watching and self.started < RESTARTS:
            self.new_worker()
        if self.strike is not None and self.strike.mode == "stall" and self.was_struck:
            for pid in all_stopped():
                if is_below(self.home, pid):
                    self._sit_out(pid)

    def _sit_out(self, pid: int) -> None:
        self.tell(f"stopped: {describe(pid)}")
        if any(process.pid == pid for process in self.living):
            before = self.leader()
            sleeper = next(process for process in self.living if process.pid == pid)
            self.new_worker()
            deadline = time.monotonic() + SUCCESSOR_SECONDS
            while time.monotonic() < deadline and self._leader_or_none() in (before, None):
                time.sleep(0.1)
            self.tell(f"leader is {self._leader_or_none()}, it was {before}")
            time.sleep(0.7)
            assert sleeper in self.living
        else:
            time.sleep(NAP_SECONDS)
        resume(pid)
        self.tell(f"{pid} goes on")

    def _leader_or_none(self) -> str | None:
        with suppress(Exception):
            return self.leader()
        return None

    # --- runs ---------------------------------------------------------------------------------------------------

    def deployment(self, flow: str, **_: Any) -> str:
        """One a flow, without variables: the server would check them for 30 ms, and then again with each run."""
        if (key := (flow, "")) not in self._deployments:
            flow_id = self.http.post("flows/", json={"name": flow}).raise_for_status().json()["id"]
            pull = [{"prefect.deployments.steps.set_working_directory": {"directory": str(FLOWS)}}]
            body = {
                "name": f"{self.pool}-{len(self._deployments)}",
                "flow_id": flow_id,
                "work_pool_name": self.pool,
                "entrypoint": f"crash_flows.py:{flow}",
                "path": str(FLOWS),
                "pull_steps": pull,
                "enforce_parameter_schema": False,
            }
            answer = self.http.post("deployments/", json=body)
            assert answer.status_code < 300, answer.text
            self._deployments[key] = answer.json()["id"]
        return self._deployments[key]

    def start(self, flow: str, name: str, *, expects: tuple[str, ...] = ("COMPLETED",), **fields: Any) -> str:
        """Submit a run called `name`; it must end in one of the states `expects`."""
        parameters = {"where": str(self.home / f"{name}.notes"), **fields.pop("parameters", {})}
        sent = {each: fields.pop(each) for each in ("queue", "due", "policy") if each in fields}
        variables = {"env": self.fault_environment(), **fields}
        run_id = self.submit(flow, parameters=parameters, overrides=variables, **sent)
        self.runs[run_id] = {
            "name": name,
            "expects": (*expects, *self.forgives),
            "parameters": parameters,
            "flow": flow,
        }
        self.tell(f"run {name} is {run_id}")
        return run_id

    def train(self, name: str, *, steps: int = 60, expects: tuple[str, ...] = ("COMPLETED",), **fields: Any) -> str:
        parameters = {
            "store": str(self.store),
            "bundle": str(self.bundle),
            "steps": steps,
            **fields.pop("parameters", {}),
        }
        return self.start("train", name, expects=expects, parameters=parameters, **fields)

    def notes(self, run_id: str) -> list[dict[str, Any]]:
        with suppress(FileNotFoundError):
            text = (self.home / f"{self.runs[run_id]['name']}.notes").read_text()
            return [json.loads(line) for line in text.splitlines()]
        return []

    def wait_for_note(self, run_id: str, **wanted: Any) -> None:
        self.wait(
            f"run {self.runs[run_id]['name']} to note {wanted}",
            lambda: any(wanted.items() <= note.items() for note in self.notes(run_id)),
        )

    def wait_until_over(self, seconds: float = 60.0) -> None:
        """Every run is in a final state, and every gang of them has ended in the ledger."""
        self.wait("every run to be over", self._all_over, seconds)

    def _all_over(self) -> bool:
        from dsec_blocks.model.gangs import GangState

        gangs = [self.gang(run_id) for run_id in self.runs]  # first: asking the server takes its time from others
        if any(gang is None or gang.state is not GangState.ENDED for gang in gangs):
            return False
        return all(self.state(run_id)[0] in TERMINAL for run_id in self.runs)

    # --- the end ------------------------------------------------------------------------------------------------

    @contextmanager
    def unwatched(self) -> Iterator[None]:
        """Nobody restarts workers in here."""
        self.is_watching = False
        try:
            yield
        finally:
            self.is_watching = True

    def stop_workers(self, signum: int = signal.SIGTERM) -> None:
        self.is_watching = False
        for process in self.living:
            resume(process.pid)
            processes.signal_process(process, signum, at="crash.test")
        deadline = time.monotonic() + 12
        while any(processes.is_alive(process) for process in self.living):
            if time.monotonic() > deadline:
                self.tell(f"workers did not stop on {signal.Signals(signum).name}")
                for process in self.living:
                    processes.signal_process(process, signal.SIGKILL, at="crash.test")
            for popen in self.workers:
                popen.poll()
            time.sleep(0.05)
        self.living.clear()

    def close(self) -> None:
        self._over.set()
        self.is_watching = False
        if self._watch is not None:
            self._watch.join()
        if self.devices is not None:
            self.devices.stop()
        self.stop_workers(signal.SIGKILL)
        for _ in range(100):
            left = processes_of(self.home)
            for pid in left:
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            if not left:
                break
            time.sleep(0.02)
        with suppress(FileNotFoundError):
            socket_path(self.home, "fork-server").unlink()
        if self._ledger is not None:
            self._ledger.close()
        self.http.close()

    def report(self) -> str:
        """All that helps to see why a case failed."""
        lines = ["", f"--- the world of {self.strike or 'no fault'} in {self.home}", *self.told]
        for run_id, told in self.runs.items():
            with suppress(Exception):
                gang = self.gang(run_id)
                lines.append(f"run {told['name']} {run_id}: {self.state(run_id)} history {self.history(run_id)}")
                lines.append(f"  gang {gang and (gang.state, gang.attempt, gang.outcome, gang.final_state)}")
        for path in sorted(self.home.glob("worker-*.log")):
            lines += [f"--- {path.name}", path.read_text(errors="replace")[-2500:]]
        for path in [*self.home.glob("fork-server.log"), *sorted(self.home.glob("gangs/*/*.log"))]:
            text = path.read_text(errors="replace").strip()
            if text:
                lines += [f"--- {path.relative_to(self.home)}", text[-800:]]
        return "\n".join(lines)
