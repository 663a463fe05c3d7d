"""The fork-server: one process per home that has imported Prefect and loaded no user code, and forks supervisors.

A Python with Prefect imported costs one to three seconds; a fork of one costs five milliseconds. It is single-threaded
so that forking is safe, keeps nothing, and may die at any time: supervisors are not its children, and the next
launch starts another.
"""

import gc
import json
import os
import signal
import socket
import sys
import threading
from contextlib import suppress
from pathlib import Path
from typing import Any, NoReturn

from dsec_blocks.gateways import files, processes
from dsec_blocks.gateways.faults import ENV_FAULT_ONCE
from dsec_blocks.model import gang_protocol
from dsec_blocks.model.names import ENV_FAULT
from dsec_workers.clusters.local import children, rehearsal, warmth
from dsec_workers.clusters.local.layout import (
    GangDirectory,
    order_from_json,
    read_json,
    socket_path,
    to_bytes,
)
from dsec_workers.clusters.local.service import Service
from dsec_workers.clusters.local.supervisor import Supervisor

SOCKET_NAME = "fork-server"
IS_SERVED = os.EX_TEMPFAIL
"""What a second fork-server of one home ends with."""


def record_of(home: Path) -> Path:
    """Where the fork-server of a home says who it is."""
    return home / "fork-server.json"


def fingerprint() -> str:
    """What a running fork-server must share with a worker that wants to use it: interpreter and code."""
    here = Path(__file__).parent
    newest = max(path.stat().st_mtime_ns for path in here.glob("*.py"))
    return f"{sys.executable} {here} {newest}"


def serve(home: Path) -> NoReturn:
    """Serve launches for `home` until killed."""
    lock = processes.hold_lock(home / "fork-server.lock", blocking=False, at="forkserver.lock")
    if lock is None:
        print("another fork-server serves this home", file=sys.stderr)
        sys.exit(IS_SERVED)
    import_what_runs_need()
    listener = listen(socket_path(home, SOCKET_NAME))
    own = processes.identify(os.getpid())
    loaded = fingerprint()
    record = {"process": own.to_json(), "fingerprint": loaded}
    files.write(record_of(home), to_bytes(record), at="forkserver.record.write")
    gc.collect()
    gc.freeze()  # the children share these pages as long as nobody touches them
    while True:
        connection, _ = listener.accept()
        with connection:
            _serve_one(home, connection, loaded)


def listen(path: Path) -> socket.socket:
    """A listening unix socket at `path`, whatever a dead predecessor left there."""
    files.remove(path, at="channel.socket.remove")
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    listener.bind(str(path))
    listener.listen(128)
    return listener


def import_what_runs_need() -> None:
    """Before the first fork; RuntimeError where that left a thread, which no child would have."""
    warmth.import_modules()
    warmth.share_tls_contexts()
    rehearsal.rehearse()
    if threading.active_count() != 1:
        raise RuntimeError(f"the fork-server must have one thread to fork safely, it has {threading.enumerate()}")


def _serve_one(home: Path, connection: socket.socket, loaded: str) -> None:
    connection.settimeout(5.0)
    try:
        request = json.loads(connection.makefile("r").readline() or "{}")
    except (OSError, ValueError):
        return
    if request.get("op") == "hello":
        connection.sendall(json.dumps({"ok": True, "fingerprint": loaded, "pid": os.getpid()}).encode() + b"\n")
    elif request.get("op") == "launch":
        directory = GangDirectory(Path(request["directory"]))
        try:
            _fork_supervisor(home, directory, connection)
        except OSError as error:  # no room for a process: who asked finds that nobody answers, and asks again
            print(f"{directory.path.name} could not be forked: {error}", file=sys.stderr, flush=True)
        connection.close()
        order = read_json(directory.order)
        if order is not None:
            with suppress(Exception):  # whatever is wrong with its settings, the run itself will say so
                warmth.keep_ready(order["env"])


def _fork_supervisor(home: Path, directory: GangDirectory, connection: socket.socket) -> None:
    """Fork twice, so that the supervisor is nobody's child here; it answers on the connection itself."""
    middle = processes.fork(at="forkserver.fork")
    if middle:
        os.waitpid(middle, 0)
        return
    try:
        if processes.fork(at="forkserver.fork_again"):
            os._exit(0)
    except OSError:
        os._exit(1)  # and never back into the fork-server's own loop
    children.leave(children.exit_code_of(lambda: _be_supervisor(home, directory, connection)))


def _be_supervisor(home: Path, directory: GangDirectory, connection: socket.socket) -> int:
    children.stand_apart(log=directory.log("supervisor"), keep=[connection.fileno()], new_session=True)
    for signum in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(signum, signal.SIG_IGN)  # a supervisor ends when its gang has
    connection.setblocking(True)
    lock = processes.hold_lock(directory.lock, blocking=False, at="supervisor.lock")
    if lock is None or directory.supervisor.exists() or directory.gone.exists():
        _answer(connection, {"ok": True, "existing": True})
        return 0
    order = order_from_json(read_json(directory.order) or {})
    for name in (ENV_FAULT, ENV_FAULT_ONCE):  # a test may strike at one gang's supervisor alone
        if name in order.env:
            os.environ[name] = order.env[name]
    processes.adopt_orphans()
    channel = socket_path(home, directory.path.name)
    listener = listen(channel)
    own = processes.identify(os.getpid())
    record = {
        **gang_protocol.told(),
        "process": own.to_json(),
        "channel": str(channel),
        "directory": str(directory.path),
    }
    files.write(directory.supervisor, to_bytes(record), at="supervisor.record.write")
    supervisor = Supervisor(home=home, directory=directory, order=order, channel=channel)
    Service(supervisor, listener)
    _answer(connection, {"ok": True, **record})
    supervisor.start()
    supervisor.loop.run()
    files.remove(channel, at="supervisor.channel.remove")
    return 0


def _answer(connection: socket.socket, message: dict[str, Any]) -> None:
    with suppress(OSError):  # the worker is gone; its successor adopts
        connection.sendall(json.dumps(message).encode() + b"\n")
    connection.close()
