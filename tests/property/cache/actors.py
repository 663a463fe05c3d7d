"""Actors on one cache directory, each a process as far as the cache can tell, stepped one durable effect at a time.

An actor is a thread that stops at every fault point of the file gateway (and at every pause), so hypothesis decides
the interleaving, effect by effect. Killing an actor raises at its next effect, before or after it is applied, and
from then on none of its effects happens: what a `finally` would have done, a killed process does not do.
"""

import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from unittest.mock import patch
from uuid import UUID

from dsec_blocks.cache.acquiring import Cache
from dsec_blocks.cache.lease import Lease
from dsec_blocks.cache.origins import origin_for
from dsec_blocks.cache.settings import CacheSettings, Revalidate
from dsec_blocks.cache.store import Limits, Sight, Store
from dsec_blocks.cache.store.layout import Layout
from dsec_blocks.cache.store.marks import Owner
from dsec_blocks.cache.store.store import Disk
from dsec_blocks.gateways.processes import ProcessId
from tests.fixtures.clock import ManualClock

PATIENCE_SECONDS = 20.0
_local = threading.local()


class Killed(BaseException):
    """The process is dead."""


@dataclass
class Actor:
    """One process."""

    pid: int
    work: Callable[[], Any]
    what: str = ""
    is_dead: bool = False
    is_done: bool = False
    result: Any = None
    error: BaseException | None = None
    at: str = ""
    """The effect that it is about to have; empty when it pauses."""
    _may_go: threading.Semaphore = field(default_factory=lambda: threading.Semaphore(0))
    _has_stopped: threading.Semaphore = field(default_factory=lambda: threading.Semaphore(0))
    _order: str = "go"
    thread: threading.Thread | None = None

    def start(self) -> None:
        self.thread = threading.Thread(target=self._run, daemon=True, name=f"actor {self.pid} {self.what}")
        self.thread.start()
        self._wait()

    def step(self, order: str = "go") -> None:
        """Let it go on to its next effect; `kill_before` and `kill_after` make that its last."""
        if self.is_done:
            return
        self._order = order
        self._may_go.release()
        self._wait()

    def _wait(self) -> None:
        assert self._has_stopped.acquire(timeout=PATIENCE_SECONDS), f"{self.what} neither stops nor ends"

    def _run(self) -> None:
        _local.actor = self
        try:
            self.stop()
            self.result = self.work()
        except Killed:
            self.is_dead = True
        except BaseException as error:
            self.error = error
        self.is_done = True
        self._has_stopped.release()

    def stop(self) -> str:
        """Called by the actor's own thread: wait to be stepped; returns how to go on."""
        if self.is_dead:
            raise Killed
        self._has_stopped.release()
        self._may_go.acquire()
        if self._order == "kill_before":
            self.is_dead = True
            raise Killed
        return self._order


@contextmanager
def stepped_point(name: str) -> Iterator[None]:
    """Stands in for `fault_point`."""
    actor: Actor | None = getattr(_local, "actor", None)
    if actor is None:
        yield
        return
    actor.at = name
    order = actor.stop()
    yield
    if order == "kill_after":
        actor.is_dead = True
        raise Killed


def stepped_pause(seconds: float) -> None:
    """Stands in for `time.sleep`."""
    actor: Actor | None = getattr(_local, "actor", None)
    if actor is not None:
        actor.at = ""
        actor.stop()


class Numbers:
    """Stands in for `uuid4` and `random`: the same every time, so that hypothesis can play a story again."""

    def __init__(self) -> None:
        self._last = 0
        self._lock = threading.Lock()

    def uuid4(self) -> UUID:
        with self._lock:
            self._last += 1
            return UUID(int=(self._last * 0x9E3779B97F4A7C15F39CC0605CEDC835) % 2**128)

    def uniform(self, low: float, high: float) -> float:
        return low


NAMERS = ("gateways.files", "cache.store.marks", "cache.store.filling", "cache.store.evicting", "cache.store.memory")


@contextmanager
def reproducible() -> Iterator[None]:
    """Every effect of an actor is a step, and nothing is random."""
    numbers = Numbers()
    with ExitStack() as patches:
        patches.enter_context(patch("dsec_blocks.gateways.files.fault_point", stepped_point))
        patches.enter_context(patch("dsec_blocks.cache.store.room.random", numbers))
        for module in NAMERS:
            patches.enter_context(patch(f"dsec_blocks.{module}.uuid4", numbers.uuid4))
        yield


@dataclass
class Site:
    """One cache directory with its actors."""

    root: Path
    limit_bytes: int
    clock: ManualClock = field(default_factory=ManualClock)
    actors: dict[int, Actor] = field(default_factory=dict)
    next_pid: int = 100
    dead: set[int] = field(default_factory=set)

    @property
    def cache_root(self) -> Path:
        return self.root / "cache"

    def is_alive(self, process: ProcessId) -> bool:
        return process.pid not in self.dead

    def cache(self, pid: int) -> Cache:
        """The cache as the process `pid` sees it."""
        owner = Owner(process=ProcessId(pid=pid, start_time=pid, boot_id="boot"), namespace="here")
        store = Store(
            layout=Layout(self.cache_root),
            clock=self.clock,
            sight=Sight(now=self.clock.now, owner=lambda: owner, is_alive=self.is_alive),
            limits=Limits(limit_bytes=self.limit_bytes, free_bytes=0, free_inodes=0),
            pause=stepped_pause,
            disk=lambda path: Disk(10**12, 10**12, 0, 0),
        )
        settings = CacheSettings(directory=self.cache_root, limits=store.limits, revalidate=Revalidate.ALWAYS)
        return Cache(store=store, settings=settings, origin_of=origin_for)

    def begin(self, what: str, work: Callable[[Cache], Any]) -> Actor:
        self.next_pid += 1
        pid = self.next_pid
        cache = self.cache(pid)
        actor = Actor(pid=pid, work=lambda: work(cache), what=what)
        self.actors[pid] = actor
        actor.start()
        return actor

    def step(self, actor: Actor, order: str = "go") -> None:
        actor.step(order)
        if actor.is_dead:
            self.dead.add(actor.pid)

    def step_to(self, actor: Actor, at: str) -> None:
        """Let it go on until it is about to have the effect `at`."""
        while actor.at != at:
            assert not actor.is_done, f"{actor.what} ended ({actor.error!r}) and was never at {at}"
            self.step(actor)

    def exit(self, actor: Actor) -> None:
        """The process ends; what it holds it holds no more."""
        actor.is_dead = True
        self.dead.add(actor.pid)

    @property
    def running(self) -> list[Actor]:
        return [actor for actor in self.actors.values() if not actor.is_done]

    def holding(self) -> list[tuple[Actor, Lease]]:
        """Leases that living actors hold."""
        return [
            (actor, actor.result)
            for actor in self.actors.values()
            if actor.is_done and not actor.is_dead and isinstance(actor.result, Lease)
        ]

    def finish(self) -> None:
        """Let every actor go on until all are done."""
        for _ in range(20_000):
            running = self.running
            if not running:
                return
            for actor in running:
                self.step(actor)
        raise AssertionError(f"never done: {[actor.what for actor in self.running]}")

    def kill_all(self) -> None:
        for actor in self.running:
            while not actor.is_done:
                self.step(actor, "kill_before")
