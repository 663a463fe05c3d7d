"""Files between outposts: what a rank returned, and the snapshots that only member 0's uploader can commit.

Each parcel is a connection of its own and each end of it a forked child, so that gigabytes on their way block neither
supervisor. A parcel is written whole, fsynced and named, before it is acknowledged.
"""

import socket
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from dsec_blocks.gateways import files, processes
from dsec_blocks.model.errors import ClusterError
from dsec_workers.clusters.kubernetes.outpost.door import knock, read_answer, say
from dsec_workers.clusters.local import children
from dsec_workers.clusters.local.loop import Loop

_CHUNK_BYTES = 2**20
_PLACES = ("runs", "spool")
"""The parts of a gang's directory that a parcel may be for."""


def receive(loop: Loop, gang: Path, connection: socket.socket, greeting: Mapping[str, Any]) -> None:
    """Have a child write the parcel that comes on `connection`; it answers by itself.

    Raises `ClusterError` for a path that no parcel may have.
    """
    target, size = _target(gang, str(greeting["path"])), int(greeting["size"])
    pid = processes.fork(at="outpost.parcel.receive")
    if pid:
        children.own_group(pid)
        connection.close()
        return
    loop.leave_in_child()
    children.leave(children.exit_code_of(lambda: _write(gang, connection, target, size)))


def send(loop: Loop, gang: Path, paths: Sequence[Path], *, to: tuple[str, int], token: str) -> int:
    """Have a child bring these files to the outpost at `to`; its pid. It ends with 0 once all are there."""
    pid = processes.fork(at="outpost.parcel.send")
    if pid == 0:
        loop.leave_in_child()
        children.leave(children.exit_code_of(lambda: _bring(gang, paths, to, token)))
    children.own_group(pid)
    return pid


def _write(gang: Path, connection: socket.socket, target: Path, size: int) -> int:
    children.stand_apart(log=gang / "parcels.log", keep=[connection.fileno()])
    connection.setblocking(True)
    connection.settimeout(60.0)
    say(connection, {"ok": True})
    files.make_directory(target.parent)
    files.write(target, _chunks(connection, size), at="outpost.parcel.write", mode=0o600)
    say(connection, {"ok": True, "size": size})
    return 0


def _chunks(connection: socket.socket, size: int) -> Iterator[bytes]:
    while size:
        chunk = connection.recv(min(_CHUNK_BYTES, size))
        if not chunk:
            raise ClusterError(f"a parcel was cut off {size} bytes before its end")
        size -= len(chunk)
        yield chunk


def _bring(gang: Path, paths: Sequence[Path], to: tuple[str, int], token: str) -> int:
    children.stand_apart(log=gang / "parcels.log", keep=[])
    for path in paths:
        size = path.stat().st_size
        greeting = {"token": token, "as": "parcel", "path": str(path.relative_to(gang)), "size": size}
        connection, _ = knock(*to, greeting)
        with connection, path.open("rb") as file:
            connection.settimeout(60.0)
            connection.sendfile(file)
            read_answer(connection, f"{to[0]}:{to[1]}")
    return 0


def _target(gang: Path, path: str) -> Path:
    target = (gang / path).resolve()
    if not any(target.is_relative_to((gang / place).resolve()) for place in _PLACES):
        raise ClusterError(f"a parcel for {path!r} is refused: it is for no rank's results and no spool")
    return target


class Couriers:
    """Parcels under way from here, and what is to be done when each has arrived, or has not."""

    def __init__(self, loop: Loop, gang: Path, *, token: str) -> None:
        self._loop, self._gang, self._token = loop, gang, token
        self._under_way: dict[int, Callable[[bool], None]] = {}

    @property
    def pids(self) -> set[int]:
        """The children that are on their way."""
        return set(self._under_way)

    def bring(self, paths: Sequence[Path], *, to: tuple[str, int], then: Callable[[bool], None]) -> None:
        """Bring files to the outpost at `to`, then call `then` with whether they are there."""
        if not paths:
            then(True)
            return
        try:
            pid = send(self._loop, self._gang, paths, to=to, token=self._token)
        except OSError as error:
            print(f"a parcel could not be sent: {error}", flush=True)
            then(False)
            return
        self._under_way[pid] = then

    def ended(self, pid: int, status: int) -> bool:
        """Whether `pid` was a courier."""
        then = self._under_way.pop(pid, None)
        if then is None:
            return False
        then(status == 0)
        return True
