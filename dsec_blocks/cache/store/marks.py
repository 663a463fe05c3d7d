"""Marks: small files that say "I, this process, am doing this to that". Leases, tombstones, asks and reservations.

Each has a name of its own, so that taking one away never takes away somebody else's. Whether its owner still lives is
decided by pid + start time + boot id where the owner can be seen; a clock decides only about owners that cannot (in
another pid namespace, or of another boot), by the age of the mark's last renewal.
"""

import json
import os
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from uuid import uuid4

from dsec_blocks.cache.store.layout import names
from dsec_blocks.gateways import files, processes
from dsec_blocks.gateways.processes import ProcessId

UNSEEN_SECONDS = 600.0
"""How long a mark of a process that cannot be seen counts after its last renewal."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Owner:
    """A process, and the pid namespace in which its pid means something."""

    process: ProcessId
    namespace: str

    def to_json(self) -> dict[str, Any]:
        """JSON-ready fields."""
        return {"process": self.process.to_json(), "namespace": self.namespace}

    @classmethod
    def from_json(cls, fields: dict[str, Any]) -> "Owner":
        """What `to_json` wrote."""
        return cls(process=ProcessId.from_json(fields["process"]), namespace=fields["namespace"])


def myself() -> Owner:
    """The calling process."""
    return owner_of(os.getpid())


def owner_of(pid: int) -> Owner:
    """The process with this pid, in our namespace. Raises `ProcessLookupError`."""
    return Owner(process=processes.identify(pid), namespace=_namespace())


@dataclass(frozen=True, slots=True, kw_only=True)
class Mark:
    """One mark. Without an owner it stays until somebody takes it away (an operator's pin)."""

    id: str = field(default_factory=lambda: uuid4().hex)
    owner: Owner | None
    since: float
    who: str
    """For people: what the owner does it for."""
    fields: dict[str, Any] = field(default_factory=dict)

    def to_bytes(self) -> bytes:
        """JSON."""
        owner = None if self.owner is None else self.owner.to_json()
        return json.dumps({"owner": owner, "since": self.since, "who": self.who, **self.fields}).encode()

    @classmethod
    def read(cls, path: Path) -> "Mark | None":
        """The mark in a file; None if it is gone or no mark."""
        try:
            told = json.loads(path.read_bytes())
            owner = told.pop("owner")
            return cls(
                id=path.name.removesuffix(".json"),
                owner=None if owner is None else Owner.from_json(owner),
                since=float(told.pop("since")),
                who=str(told.pop("who")),
                fields=told,
            )
        except (OSError, ValueError, KeyError, TypeError, AttributeError):
            return None


@dataclass(frozen=True, kw_only=True)
class Sight:
    """Who can tell the living from the dead: the process table, and a clock for those not in it."""

    now: Callable[[], float]
    owner: Callable[[], Owner] = myself
    is_alive: Callable[[ProcessId], bool] = processes.is_alive
    unseen_seconds: float = UNSEEN_SECONDS
    over: set[str] = field(default_factory=set)
    """Ids of marks of this process that mean nothing any more and could not be taken away: the disk was read-only."""

    def is_dead(self, mark: Mark, path: Path) -> bool:
        """Whether the mark's owner is gone for good, or is this process and done with it."""
        if mark.id in self.over:
            return True
        if mark.owner is None:
            return False
        if self.sees(mark.owner):
            return not self.is_alive(mark.owner.process)
        try:
            return self.now() - path.stat().st_mtime > self.unseen_seconds
        except FileNotFoundError:
            return True

    def is_surely_dead(self, mark: Mark, path: Path) -> bool:
        """Dead by the process table, not by a clock: such an owner writes nothing any more."""
        return mark.id in self.over or (mark.owner is not None and self.sees(mark.owner) and self.is_dead(mark, path))

    def sees(self, owner: Owner) -> bool:
        """Whether the owner's pid means anything here: same boot, same pid namespace."""
        me = self.owner()
        return owner.namespace == me.namespace and owner.process.boot_id == me.process.boot_id


def path_of(directory: Path, mark: Mark) -> Path:
    """Where a mark lies."""
    return directory / f"{mark.id}.json"


def marks_in(directory: Path) -> Iterator[tuple[Path, Mark]]:
    """Every readable mark of a directory. The names are listed twice: a listing may miss what is renamed meanwhile."""
    for name in sorted({*names(directory), *names(directory)}):
        path = directory / name
        mark = Mark.read(path)
        if mark is not None:
            yield path, mark


def living(directory: Path, sight: Sight) -> list[Mark]:
    """The marks of a directory whose owners live."""
    return [mark for path, mark in marks_in(directory) if not sight.is_dead(mark, path)]


def renew(path: Path) -> None:
    """Say that the owner still lives, for those who cannot see it."""
    with suppress(FileNotFoundError):
        os.utime(path)


def place(directory: Path, mark: Mark, *, at: str) -> Path:
    """Put a mark down; returns its path."""
    path = path_of(directory, mark)
    for _ in range(100):
        directory.mkdir(exist_ok=True)
        try:
            files.announce(path, mark.to_bytes(), at=at)
        except FileNotFoundError:  # somebody removed the empty directory in between
            continue
        except OSError:  # it may be there all the same, and nobody would ever take it away
            files.remove(path, at="cache.mark.undo")
            raise
        return path
    raise OSError(f"{directory} is removed again and again")


def withdraw(path: Path, *, at: str) -> None:
    """Take a mark away, and its directory if that was the last of it."""
    files.remove(path, at=at)
    if path.parent.parent.name in ("leases", "tombstones"):
        files.remove_empty(path.parent)


def _namespace() -> str:
    try:
        return str(Path("/proc/self/ns/pid").readlink())
    except OSError:
        return ""
