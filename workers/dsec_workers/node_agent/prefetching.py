"""What the agent fetches ahead of need: one fetch an address, however many ask for it, stopped when nobody does.

Who asks by HTTP is written down first, so that an agent that is killed goes on with it; who asks in the ledger is
there to be read again. What a killed agent had fetched so far, the cache resumes.
"""

import json
import logging
import queue
import threading
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any
from uuid import uuid4

from dsec_blocks.cache import Cache
from dsec_blocks.cache.bundles import BundleAddress
from dsec_blocks.cache.errors import TransferCancelled
from dsec_blocks.cache.store.layout import names
from dsec_blocks.gateways import files
from dsec_blocks.model.errors import DsecError

BY_HAND = "by hand"
"""Who asks when it was a person or a program over HTTP, not a run."""
_REMEMBERED = 200
_log = logging.getLogger(__name__)


class State(StrEnum):
    """How far a fetch is."""

    QUEUED = "queued"
    FETCHING = "fetching"
    DONE = "done"
    FAILED = "failed"
    CANCELLED = "cancelled"


OPEN = (State.QUEUED, State.FETCHING)


@dataclass(kw_only=True, eq=False)
class Prefetching:
    """One address on its way to this node."""

    id: str
    address: BundleAddress
    asked_at: float
    wanted_by: set[str]
    state: State = State.QUEUED
    bytes_total: int = 0
    """0 until the origin has been asked."""
    bytes_resident: int = 0
    """Of these, what was on the node before."""
    bytes_fetched: int = 0
    bundle: str = ""
    error: str = ""
    seconds: float = 0.0
    figures: dict[str, float] = field(default_factory=dict)
    """Seconds of its stages, once it is done: `fetch`, `verify`."""
    cancelled: threading.Event = field(default_factory=threading.Event)

    @property
    def bytes_done(self) -> int:
        """Bytes of the bundle that are here."""
        return min(self.bytes_total, self.bytes_resident + self.bytes_fetched)

    def to_json(self) -> dict[str, Any]:
        """What the API shows."""
        return {
            "id": self.id,
            "uri": self.address.uri,
            "include": list(self.address.include),
            "exclude": list(self.address.exclude),
            "state": self.state,
            "asked_at": self.asked_at,
            "wanted_by": sorted(self.wanted_by),
            "bytes_total": self.bytes_total,
            "bytes_done": self.bytes_done,
            "bundle": self.bundle,
            "error": self.error,
            "seconds": round(self.seconds, 3),
        }


class Prefetches:
    """All of them, in the order in which they were asked for. Safe to share between threads."""

    def __init__(self, cache: Cache, directory: Path, *, at_once: int) -> None:
        self._cache = cache
        self._directory = directory
        self._ended: Callable[[Prefetching], None] = lambda one: None
        self._is_stopping = False
        self._lock = threading.Lock()
        self._all: dict[str, Prefetching] = {}
        self._queue: queue.SimpleQueue[Prefetching | None] = queue.SimpleQueue()
        self._threads = [
            threading.Thread(target=self._work, daemon=True, name=f"dsec-prefetch-{number}")
            for number in range(at_once)
        ]

    def start(self, *, ended: Callable[[Prefetching], None]) -> None:
        """Go on with what was asked for before, and begin to fetch; `ended` hears of each that ends."""
        self._ended = ended
        files.make_directory(self._directory)
        for path in self._directory.glob(".*"):
            self._discard(path)  # an agent that was killed had only begun to write it
        for name in names(self._directory):
            try:
                told = json.loads((self._directory / name).read_bytes())
                address = BundleAddress.of(told["uri"], include=told["include"], exclude=told["exclude"])
            except (OSError, ValueError, KeyError, TypeError, DsecError):
                self._discard(self._directory / name)
                continue
            self._add(address, by=BY_HAND, id=name.removesuffix(".json"))
        for thread in self._threads:
            thread.start()

    def _discard(self, path: Path) -> None:
        files.remove(path, at="agent.prefetch.discard")

    def ask(self, address: BundleAddress) -> Prefetching:
        """Fetch for somebody who asked by hand; the same address that is on its way already is one fetch."""
        with self._lock:
            same = self._open(address)
            if same is not None and BY_HAND in same.wanted_by:
                return same
        id = same.id if same is not None else uuid4().hex[:12]
        told = {"uri": address.uri, "include": address.include, "exclude": address.exclude}
        files.write(self._directory / f"{id}.json", json.dumps(told).encode(), at="agent.prefetch.write")
        return self._add(address, by=BY_HAND, id=id)

    def want(self, address: BundleAddress, *, by: str) -> Prefetching:
        """Fetch for `by`, who says again and again that it still wants it."""
        return self._add(address, by=by, id=None)

    def unwant(self, one: Prefetching, *, by: str) -> None:
        """`by` no longer wants it: stopped when nobody else does."""
        if by == BY_HAND:
            self._forget(one)
        with self._lock:
            one.wanted_by.discard(by)
            if not one.wanted_by and one.state in OPEN:
                one.cancelled.set()

    def all(self) -> list[Prefetching]:
        """Those that are under way, and the last that ended."""
        with self._lock:
            return list(self._all.values())

    def get(self, id: str) -> Prefetching | None:
        """One of them."""
        with self._lock:
            return self._all.get(id)

    def stop(self, *, seconds: float) -> None:
        """Interrupt everything; what arrived is kept for the next agent, and so is what was asked for."""
        self._is_stopping = True
        with self._lock:
            for one in self._all.values():
                one.cancelled.set()
        for _ in self._threads:
            self._queue.put(None)
        deadline = self._cache.store.clock.monotonic() + seconds
        for thread in filter(threading.Thread.is_alive, self._threads):
            thread.join(max(0.0, deadline - self._cache.store.clock.monotonic()))

    def _add(self, address: BundleAddress, *, by: str, id: str | None) -> Prefetching:
        with self._lock:
            one = self._open(address)
            if one is not None:
                one.wanted_by.add(by)
                return one
            asked_at = self._cache.store.clock.now()
            one = Prefetching(id=id or uuid4().hex[:12], address=address, asked_at=asked_at, wanted_by={by})
            self._all[one.id] = one
            ended = [key for key, other in self._all.items() if other.state not in OPEN]
            for key in ended[: max(0, len(ended) - _REMEMBERED)]:
                del self._all[key]
        self._queue.put(one)
        return one

    def _open(self, address: BundleAddress) -> Prefetching | None:
        return next(
            (
                one
                for one in self._all.values()
                if one.address == address and one.state in OPEN and not one.cancelled.is_set()
            ),
            None,
        )

    def _work(self) -> None:
        while (one := self._queue.get()) is not None:
            self._fetch(one)

    def _fetch(self, one: Prefetching) -> None:
        clock = self._cache.store.clock
        began = clock.monotonic()

        def listed(total_bytes: int, missing_bytes: int) -> None:
            one.bytes_total, one.bytes_resident, one.bytes_fetched = total_bytes, total_bytes - missing_bytes, 0

        def arrived(count: int) -> None:
            one.bytes_fetched += count

        state = State.FAILED
        try:
            if one.cancelled.is_set():
                raise TransferCancelled("it was no longer wanted before it began")
            one.state = State.FETCHING
            with self._cache.acquire(
                one.address.uri,
                include=one.address.include,
                exclude=one.address.exclude,
                who=f"prefetch for {', '.join(sorted(one.wanted_by)) or 'nobody'}",
                progress=arrived,
                listed=listed,
                cancelled=one.cancelled.is_set,
                background=True,
            ) as lease:
                one.bundle, one.bytes_total = lease.bundle, lease.size_bytes
                one.bytes_resident, one.bytes_fetched = lease.size_bytes, 0
                one.figures = {"fetch": lease.acquired.fetch_seconds, "verify": lease.acquired.verify_seconds}
            state = State.DONE
        except TransferCancelled as error:
            state, one.error = State.CANCELLED, str(error)
        except DsecError as error:
            one.error = str(error)
        except Exception as error:  # noqa: BLE001 - one bundle's surprise must not end the others' fetches
            _log.exception("prefetching %s", one.address)
            one.error = f"{one.address}: {type(error).__name__}: {error}; the agent's log has more"
        one.seconds = clock.monotonic() - began
        if self._is_stopping:
            return
        self._forget(one)
        one.state = state
        self._ended(one)

    def _forget(self, one: Prefetching) -> None:
        try:
            files.remove(self._directory / f"{one.id}.json", at="agent.prefetch.remove")
        except OSError as error:
            _log.warning("%s: it will be fetched again by the next agent: %s", one.address, error)


def totals(some: Iterable[Prefetching]) -> tuple[int, int]:
    """Bytes done and in all."""
    found = list(some)
    return sum(one.bytes_done for one in found), sum(one.bytes_total for one in found)
