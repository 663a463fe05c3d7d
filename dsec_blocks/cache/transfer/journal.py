"""What of a fetch is already on the disk, so that a killed one goes on where it was.

A log of JSON lines beside the staged files. What arrived survives the death of the process (it is in the kernel's
hands), not of the machine; so the first line names the boot. Lines of another boot count only as far as a prefix hash
confirms them, and every prefix hash is compared again while the content is hashed, whatever the boot.

    {"boot": ID}                                     of the lines that follow
    {"o": PATH, "uri": …, "version": …, "size": …}   an object begins: what was noted before is void
    {"d": PATH, "r": [START, END]}                   these bytes are written
    {"h": PATH, "at": OFFSET, "is": HASH}            blake3 of the first OFFSET bytes
    {"f": PATH, "is": HASH}                          whole, hashed and fsynced
"""

import hashlib
import json
import threading
from dataclasses import dataclass, field
from pathlib import Path

from dsec_blocks.cache.origins.objects import RemoteObject
from dsec_blocks.cache.transfer.gaps import merged
from dsec_blocks.gateways.processes import boot_id
from dsec_blocks.gateways.staged import AppendedLog

NAME = "journal"


@dataclass(slots=True)
class Progress:
    """What the journal knows of one object."""

    identity: tuple[str, str | None, int]
    done: list[tuple[int, int]] = field(default_factory=list)
    prefixes: dict[int, str] = field(default_factory=dict)
    digest: str | None = None

    def confirmed(self) -> list[tuple[int, int]]:
        """What a prefix hash will prove or disprove: all before the last of them."""
        return [(0, max(self.prefixes))] if self.prefixes else []


class Journal:
    """The journal of one staging directory. Thread-safe."""

    def __init__(self, staging: Path, *, boot_id: str) -> None:
        self._path = staging / NAME
        self._known = _read(self._path, boot_id=boot_id)
        self._lock = threading.Lock()
        self._log = AppendedLog(self._path)
        self._log.append(b"\n", at="cache.transfer.journal_begin")  # the last line may be torn
        self._write({"boot": boot_id})

    def progress(self, item: RemoteObject) -> Progress | None:
        """What is left of an earlier fetch of exactly this version of the object."""
        found = self._known.get(item.path)
        return found if found is not None and found.identity == _identity(item) else None

    def begin(self, item: RemoteObject) -> None:
        """An object starts at its first byte."""
        self._write({"o": item.path, "uri": item.uri, "version": item.version, "size": item.size_bytes})

    def done(self, item: RemoteObject, start: int, end: int) -> None:
        """These bytes are written."""
        self._write({"d": item.path, "r": [start, end]})

    def prefix(self, item: RemoteObject, offset: int, digest: str) -> None:
        """The first `offset` bytes hash to this."""
        self._write({"h": item.path, "at": offset, "is": digest})

    def finished(self, item: RemoteObject, digest: str) -> None:
        """The object is whole and durable."""
        self._write({"f": item.path, "is": digest})

    def close(self) -> None:
        """Give the file back."""
        with self._lock:
            self._log.close()

    def _write(self, fields: dict[str, object]) -> None:
        line = json.dumps(fields, separators=(",", ":")).encode() + b"\n"
        with self._lock:
            self._log.append(line, at="cache.transfer.journal")


def staged_path(staging: Path, item: RemoteObject) -> Path:
    """Where an object is staged: a flat name, because a bundle's own paths may be of any depth."""
    return staging / f"{hashlib.sha256(item.path.encode()).hexdigest()[:32]}.part"


def arrived_bytes(staging: Path) -> int:
    """Bytes of all objects of a staging directory that need not be fetched again, as far as its journal knows."""
    return sum(
        progress.identity[2]
        if progress.digest is not None
        else sum(end - start for start, end in merged(progress.done))
        for progress in _read(staging / NAME, boot_id=boot_id()).values()
    )


def _read(path: Path, *, boot_id: str) -> dict[str, Progress]:
    try:
        lines = path.read_bytes().split(b"\n")
    except FileNotFoundError:
        return {}
    known: dict[str, Progress] = {}
    is_this_boot = False
    for line in lines:
        try:
            fields = json.loads(line)
        except ValueError:  # torn: the process died in it
            continue
        if "boot" in fields:
            if not is_this_boot:
                for progress in known.values():
                    progress.done = progress.confirmed()
            is_this_boot = fields["boot"] == boot_id
        elif "o" in fields:
            known[fields["o"]] = Progress((fields["uri"], fields["version"], fields["size"]))
        elif "d" in fields and fields["d"] in known:
            start, end = fields["r"]
            known[fields["d"]].done.append((start, end))
        elif "h" in fields and fields["h"] in known:
            known[fields["h"]].prefixes[fields["at"]] = fields["is"]
            known[fields["h"]].done += known[fields["h"]].confirmed()
        elif "f" in fields and fields["f"] in known:
            known[fields["f"]].digest = fields["is"]
    if not is_this_boot:
        for progress in known.values():
            progress.done = progress.confirmed()
    return known


def _identity(item: RemoteObject) -> tuple[str, str | None, int]:
    return (item.uri, item.version, item.size_bytes)
