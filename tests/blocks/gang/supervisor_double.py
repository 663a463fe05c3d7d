"""A gang's supervisor for tests: speaks the channel's protocol, starts ranks as processes, and obeys the test.

The real one lives in the local cluster adapter and has tests of its own; here a test must decide *when* a notice
arrives and *which* rank hears of it late.
"""

import json
import os
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import cloudpickle

from dsec_blocks.gang.calls import free_port
from dsec_blocks.model import names
from dsec_blocks.model.requests import GangRequest
from tests.fixtures.forking import ForkedModule, Zygote

REPOSITORY = Path(__file__).resolve().parents[3]
RANK = "dsec_blocks.gang.local_rank"


class SupervisorDouble:
    """One gang: `start` its ranks, `notify` it, look at what it said."""

    def __init__(self, directory: Path, *, world_size: int, run_id: str = "run-1", attempt: int = 1) -> None:
        self.directory = directory
        self.world_size = world_size
        self.run_id, self.attempt = run_id, attempt
        self.spool = directory / f"spool-{attempt}"
        self.spool.mkdir(parents=True, exist_ok=True)
        self.said: list[dict[str, Any]] = []
        self.notice: dict[str, Any] | None = None
        self.stop_before: int | None = None
        self.on_request: Callable[[dict[str, Any]], None] = lambda _: None
        self.processes: dict[int, subprocess.Popen[bytes] | ForkedModule] = {}
        self._lock = threading.Condition()
        self._meetings: dict[str, dict[int, Any]] = {}
        self._agreed: dict[str, Any] = {}
        self._hello: list[Any] = []
        self.path = str(Path(tempfile.mkdtemp(prefix="dsec-")) / "channel")
        self._server = socket.socket(socket.AF_UNIX)
        self._server.bind(self.path)
        self._server.listen()
        threading.Thread(target=self._accept, daemon=True).start()

    def env(self, rank: int | None = None, *, port: int = 0) -> dict[str, str]:
        """The environment of one rank, or of the flow's process."""
        env = {key: value for key, value in os.environ.items() if not key.startswith(("DSEC_", "RANK", "WORLD"))}
        placement = [{"node": f"n{i}", "devices": []} for i in range(self.world_size)]
        env |= {
            names.ENV_CHANNEL: self.path,
            names.ENV_RUN_ID: self.run_id,
            names.ENV_ATTEMPT: str(self.attempt),
            names.ENV_SPOOL: str(self.spool),
            names.ENV_REQUEST: json.dumps(GangRequest(nodes=self.world_size).to_json()),
            names.ENV_PLACEMENT: json.dumps(placement),
            names.ENV_HOME: str(self.directory),
            "PYTHONPATH": str(REPOSITORY),
        }
        if rank is not None:
            env |= {
                "RANK": str(rank), "WORLD_SIZE": str(self.world_size), "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "1",
                "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), names.ENV_MEMBER: str(rank),
            }  # fmt: skip
        return env

    def start(
        self,
        function: Callable[..., Any],
        *args: Any,
        env: dict[str, str] | None = None,
        zygote: Zygote | None = None,
        **kwargs: Any,
    ) -> None:
        """Start every rank with a call of `function`, forked from the `zygote` where one is given."""
        port = free_port()
        call = self.directory / f"call-{self.attempt}"
        call.write_bytes(cloudpickle.dumps((function, args, kwargs)))
        for rank in range(self.world_size):
            files = [str(self.directory / f"{kind}-{self.attempt}-{rank}") for kind in ("result", "error")]
            words, whole = [str(call), *files], {**self.env(rank, port=port), **(env or {})}
            if zygote is None:
                self.processes[rank] = subprocess.Popen([sys.executable, "-m", RANK, *words], env=whole)
            else:
                log = self.directory / f"rank-{rank}.log"
                self.processes[rank] = zygote.start(RANK, words, env=whole, cwd=REPOSITORY, out=log, errors=log)

    def wait(self, timeout: float = 90) -> list[int]:
        """Wait for all ranks; their exit codes."""
        return [self.processes[rank].wait(timeout) for rank in range(self.world_size)]

    def result(self, rank: int) -> Any:
        return cloudpickle.loads((self.directory / f"result-{self.attempt}-{rank}").read_bytes())

    def error(self, rank: int) -> dict[str, str]:
        return json.loads((self.directory / f"error-{self.attempt}-{rank}").read_text())

    def notify(self, reason: str = "evicted by a test") -> None:
        """Tell every rank that the gang must leave."""
        self.notice = {"kind": "evict", "reason": reason, "deadline": 4e9, "attempt": self.attempt}
        for file, lock in list(self._hello):
            with suppress(OSError), lock:
                file.write(json.dumps({"push": "notice", "notice": self.notice}) + "\n")
                file.flush()

    def heard(self, op: str) -> list[dict[str, Any]]:
        """What was said with this op."""
        return [said for said in self.said if said["op"] == op]

    def close(self) -> None:
        self._server.close()
        for process in self.processes.values():
            if process.poll() is None:
                process.kill()
            process.wait()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                connection, _ = self._server.accept()
                threading.Thread(target=self._serve, args=(connection,), daemon=True).start()

    def _serve(self, connection: socket.socket) -> None:
        file, lock = connection.makefile("rw"), threading.Lock()
        for line in file:
            request = json.loads(line)
            threading.Thread(target=self._answer, args=(request, file, lock), daemon=True).start()

    def _answer(self, request: dict[str, Any], file: Any, lock: threading.Lock) -> None:
        self.on_request(request)
        with self._lock:
            self.said.append(request)
        op = request["op"]
        answer: dict[str, Any] = {}
        if op == "hello":
            self._hello.append((file, lock))
            answer = {"run_id": self.run_id, "attempt": self.attempt, "notice": self.notice}
        elif op == "step":
            answer = {"stop_before": self.stop_before, "notice": self.notice}
        elif op == "stop_before":
            self.stop_before = request["step"]
        elif op == "agree":
            answer = {"value": self._meet(request["name"], request["rank"], request["value"])}
        with suppress(OSError, ValueError), lock:
            file.write(json.dumps({"id": request["id"], "ok": True, **answer}) + "\n")
            file.flush()

    def _meet(self, name: str, rank: int, value: Any) -> Any:
        with self._lock:
            meeting = self._meetings.setdefault(name, {})
            meeting[rank] = value
            if len(meeting) == self.world_size:
                values = list(meeting.values())
                self._agreed[name] = any(values) if isinstance(values[0], bool) else max(values)
                self._lock.notify_all()
            self._lock.wait_for(lambda: name in self._agreed)
            return self._agreed[name]
