"""Where a gang keeps its files, and the records in them.

A gang directory is `$home/gangs/<run>-<attempt>/`. `order.json` is what to start; `supervisor.json` says that it was
started, and by whom; `events.jsonl` and `gone.json` say what happened. A successor of the worker needs nothing else.
"""

import hashlib
import json
import os
import stat
import tempfile
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from dsec_blocks.gateways.processes import ProcessId
from dsec_blocks.model import gang_protocol
from dsec_blocks.model.errors import ClusterError
from dsec_blocks.model.gangs import Placement
from dsec_blocks.model.requests import GangRequest
from dsec_workers.clusters.protocol import GangKey, Known, LaunchOrder


@dataclass(frozen=True, slots=True)
class GangDirectory:
    """The directory of one attempt of one gang."""

    path: Path

    @classmethod
    def of(cls, home: Path, key: GangKey) -> "GangDirectory":
        """Where the gang `key` lives under `home`."""
        return cls(gangs_of(home) / f"{key.run_id}-{key.attempt}")

    @property
    def order(self) -> Path:
        """What to start; only its owner may read it, since the environment holds credentials."""
        return self.path / "order.json"

    @property
    def supervisor(self) -> Path:
        """Who supervises, where its channel is."""
        return self.path / "supervisor.json"

    @property
    def lock(self) -> Path:
        """Held by the supervisor for its life: two can never run."""
        return self.path / "supervisor.lock"

    @property
    def events(self) -> Path:
        """What has happened, one event a line."""
        return self.path / "events.jsonl"

    @property
    def notice(self) -> Path:
        """The notice it has been given."""
        return self.path / "notice.json"

    @property
    def gone(self) -> Path:
        """How it left; written once, when no process is left."""
        return self.path / "gone.json"

    @property
    def stop_before(self) -> Path:
        """The step before which all ranks stop."""
        return self.path / "stop_before.json"

    @property
    def spool(self) -> Path:
        """Snapshots that wait for their upload."""
        return self.path / "spool"

    @property
    def runs(self) -> Path:
        """Results and errors of the ranks, one directory a `gang.run`."""
        return self.path / "runs"

    @property
    def work(self) -> Path:
        """The working directory, unless the order names one."""
        return self.path / "work"

    def log(self, name: str) -> Path:
        """The log of `flow`, `member-0`, `rank-0`, `supervisor` or `uploader`."""
        return self.path / f"{name}.log"


def gangs_of(home: Path) -> Path:
    """The parent of all gang directories."""
    return home / "gangs"


def devices_of(home: Path) -> Path:
    """The directory of the device locks."""
    return home / "devices"


def socket_path(home: Path, name: str) -> Path:
    """A short path for the socket `name` of this home (a socket's path may have no more than 107 bytes).

    Raises `ClusterError` when the per-user directory belongs to somebody else.
    """
    digest = hashlib.sha256(f"{home.resolve()}\0{name}".encode()).hexdigest()[:20]
    return _runtime_directory() / f"{digest}.sock"


def read_json(path: Path) -> dict[str, Any] | None:
    """The record in `path`, or None when there is none (yet)."""
    try:
        return dict(json.loads(path.read_bytes()))
    except FileNotFoundError:
        return None


def to_bytes(record: Mapping[str, Any]) -> bytes:
    """A record as the file's content."""
    return json.dumps(record, indent=1).encode()


def order_to_json(order: LaunchOrder) -> dict[str, Any]:
    """JSON-ready fields of a launch order."""
    return {
        **gang_protocol.told(),
        "run_id": order.key.run_id,
        "attempt": order.key.attempt,
        "name": order.name,
        "request": order.request.to_json(),
        "placement": order.placement.to_json(),
        "env": dict(order.env),
        "command": order.command,
        "working_dir": order.working_dir,
        "hold_start": order.hold_start,
        "start_timeout_seconds": order.start_timeout_seconds,
        "known": None if order.known is None else asdict(order.known),
    }


def order_from_json(record: Mapping[str, Any]) -> LaunchOrder:
    """The order that `order_to_json` wrote, in this or an older version.

    Raises `GangTooNew` for one of a newer version.
    """
    gang_protocol.refuse_newer(record, "the order for this gang", upgrade="the DSec in the image that runs it")
    return LaunchOrder(
        key=GangKey(record["run_id"], record["attempt"]),
        name=record["name"],
        request=GangRequest.from_json(record["request"]),
        placement=Placement.from_json(record["placement"]),
        env=record["env"],
        command=record.get("command"),
        working_dir=record.get("working_dir"),
        hold_start=record["hold_start"],
        start_timeout_seconds=record["start_timeout_seconds"],
        known=Known(**record["known"]) if record.get("known") else None,
    )


def supervisor_of(record: Mapping[str, Any]) -> ProcessId:
    """The supervisor named in `supervisor.json`."""
    return ProcessId.from_json(record["process"])


def _runtime_directory() -> Path:
    base = os.environ.get("XDG_RUNTIME_DIR", "")
    directory = Path(base) / "dsec" if base and len(base) < 60 and Path(base).is_dir() else _under_tmp()
    directory.mkdir(mode=0o700, exist_ok=True)
    found = directory.lstat()
    if found.st_uid != os.getuid() or not stat.S_ISDIR(found.st_mode) or found.st_mode & 0o077:
        raise ClusterError(
            f"{directory} does not belong to this user alone; remove it or set XDG_RUNTIME_DIR to a private directory"
        )
    return directory


def _under_tmp() -> Path:
    temporary = tempfile.gettempdir()
    return Path(temporary if len(temporary) < 50 else "/tmp") / f"dsec-{os.getuid()}"
