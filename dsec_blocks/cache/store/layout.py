"""Where things lie in a cache directory, and making the directory ours.

cache.json                    marks the directory: nothing is ever removed from one that is not a cache
blobs/ab/ab12…                content, named by its blake3, mode 0444
views/BUNDLE/NONCE/           manifest.json and files/…, hard links to blobs; published whole, never changed
refs/KEY.json                 address → bundle, and when it was last compared with the origin
listings/KEY.json             the origin's listing that the ref was made from (versions by path)
leases/VIEW/ID.json           who uses a view        tombstones/VIEW/ID.json   who wants to evict it
asks/ID.json                  who wants room         reservations/ID.json      who has it
staging/ID/                   what a reservation is being filled with
trash/ID                      on its way out; counted until it is gone
policy/                       what the eviction policy remembers; losing it costs hits, nothing else
"""

import json
import os
from dataclasses import dataclass
from pathlib import Path

from dsec_blocks.cache.errors import InvalidCacheSetting, LocalDiskError
from dsec_blocks.gateways import files

MARKER = {"dsec_cache": 1}
_DIRECTORIES = (
    "blobs", "views", "refs", "listings", "leases", "tombstones", "asks", "reservations", "staging", "trash", "policy",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Layout:
    """Paths below one cache directory."""

    root: Path

    def __getattr__(self, name: str) -> Path:
        if name in _DIRECTORIES:
            return self.root / name
        raise AttributeError(name)

    @property
    def marker(self) -> Path:
        """The file that makes a directory a cache."""
        return self.root / "cache.json"

    @property
    def exists(self) -> bool:
        """Whether the directory is a cache already."""
        return self.marker.is_file()

    def blob(self, digest: str) -> Path:
        """The blob of a digest."""
        return self.root / "blobs" / digest[:2] / digest

    def view(self, view_id: str) -> Path:
        """The directory of a view, `BUNDLE.NONCE`."""
        bundle, _, nonce = view_id.partition(".")
        return self.root / "views" / bundle / nonce

    def prepare(self) -> None:
        """Make the directory a cache; one that is a cache already is left alone.

        Raises `InvalidCacheSetting` for a directory with other things in it, `LocalDiskError` if it cannot be written.
        """
        if self.exists:
            self._check_version()
            return
        try:
            if self.root.exists():
                if not self.root.is_dir():
                    raise InvalidCacheSetting(f"directory: {self.root} is a file; name a directory for the cache")
                strange = [name for name in os.listdir(self.root) if name not in _DIRECTORIES and name[:1] != "."]
                if strange and not self.exists:
                    raise InvalidCacheSetting(
                        f"directory: {self.root} has other things in it ({sorted(strange)[0]}); name an empty one"
                    )
            for name in _DIRECTORIES:
                files.make_directory(self.root / name)
            files.write(self.marker, json.dumps(MARKER).encode(), at="cache.marker.write")
        except OSError as error:
            raise LocalDiskError(
                f"the cache directory {self.root} cannot be written: {error.strerror or error}; "
                "make it writable for this user, or name another directory"
            ) from error

    def _check_version(self) -> None:
        try:
            known = json.loads(self.marker.read_bytes()) == MARKER
        except (OSError, ValueError):
            known = False
        if not known:
            raise InvalidCacheSetting(
                f"directory: {self.root} was made by another version of DSec; name another directory"
            )


def names(directory: Path) -> list[str]:
    """Finished entries of a directory, sorted; empty if there is none. One that begins with a dot is being written."""
    try:
        return sorted(name for name in os.listdir(directory) if not name.startswith("."))
    except (FileNotFoundError, NotADirectoryError):
        return []
