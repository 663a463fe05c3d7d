"""The pool's gangs as the ledger has them, kept here, so that each round reads what has changed and not all again.

A mirror begins empty, with its leader's term, and reads everything the first time. From then on it asks the ledger for
news, by the number of the pool's last transaction: no clock and no notification is trusted to tell. What no number
tells of (rows written by hand, or deleted between two rounds) is found by counting the living each time, and by reading
everything once a minute and comparing; whatever differs then is put right and said in the log.
"""

import threading
from bisect import bisect_left, insort
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from math import inf
from operator import attrgetter

from dsec_blocks.ledger import Eviction, Holding, Ledger, Reading
from dsec_blocks.model.gangs import Gang, GangState
from dsec_workers.lifecycle.records import records_of
from dsec_workers.scheduling.consolidation import COMING
from dsec_workers.scheduling.snapshot import RunningGang

_place = attrgetter("submitted_at", "run_id")
WHOLE_SECONDS = 60.0
"""How often everything is read again and compared."""


@dataclass(frozen=True, slots=True, kw_only=True)
class View:
    """One state of the ledger. Nothing in it changes: the next reading makes another."""

    gangs: Mapping[str, Gang] = field(default_factory=dict)
    """Those that have not ended."""
    waiting: Sequence[Gang] = ()
    """First submitted first."""
    running: Mapping[str, RunningGang] = field(default_factory=dict)
    """Those that hold devices or are promised some, by record, as the planner sees them but for when they were
    last moved."""
    holdings: Mapping[str, tuple[Holding, ...]] = field(default_factory=dict)
    """By run."""
    evicted_for: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """By waiting run: those that it was ever evicted for."""

    begun: Mapping[str, Gang] = field(default_factory=dict)
    """Of `gangs`, those that do not wait: a few, where the waiting may be thousands."""

    def under_way(self) -> list[Gang]:
        """Between waiting and ended, first submitted first."""
        return sorted(self.begun.values(), key=_place)

    def expired(self, now: float) -> set[str]:
        """The runs for which something is reserved, at once or where they are to go on, that was not bound in time."""
        return {
            gang.run_id
            for gang in self.begun.values()
            if gang.expires_at is not None
            and gang.expires_at <= now
            and (gang.state is GangState.RESERVED or gang.resumes_at is not None)
        }

    def held(self) -> list[Holding]:
        """Every reservation."""
        return [holding for each in self.holdings.values() for holding in each]


def view_of(reading: Reading) -> View:
    """The view of one reading of everything."""
    gangs = [gang for gang in reading.gangs if gang.state is not GangState.ENDED]
    waiting = [gang for gang in gangs if gang.state is GangState.WAITING]
    running: dict[str, RunningGang] = {}
    for gang in gangs:
        if gang.placement is not None:
            for record in records_of(gang, reading.holdings.get(gang.run_id, ()), for_run=reading.evicting_for):
                running[record.run_id] = record
    known = {gang.run_id: gang for gang in gangs}
    waits = {gang.run_id for gang in waiting}
    return View(
        gangs=known,
        waiting=sorted(waiting, key=_place),
        running=running,
        holdings={run_id: held for run_id, held in reading.holdings.items() if run_id in known},
        evicted_for={run_id: others for run_id, others in reading.evicted_for.items() if run_id in waits},
        begun={gang.run_id: gang for gang in gangs if gang.state is not GangState.WAITING},
    )


def reading_of(gangs: Sequence[Gang], holdings: Iterable[Holding], evictions: Sequence[Eviction]) -> Reading:
    """What a ledger with these records would answer; `evictions` are all that there were."""
    held: dict[str, list[Holding]] = {}
    for holding in holdings:
        held.setdefault(holding.run_id, []).append(holding)
    past = [each for each in evictions if each.for_run is not None and each.state != "withdrawn"]
    waits = {gang.run_id for gang in gangs if gang.state is GangState.WAITING}
    evicted_for: dict[str, set[str]] = {}
    for each in past:
        if each.run_id in waits and each.for_run is not None:
            evicted_for.setdefault(each.run_id, set()).add(each.for_run)
    return Reading(
        number=0,
        gangs=gangs,
        holdings={run_id: tuple(each) for run_id, each in held.items()},
        evicting_for={each.run_id: each.for_run for each in evictions if each.state == "open"},
        evicted_for={run_id: tuple(sorted(each)) for run_id, each in evicted_for.items()},
        alive=len(gangs),
    )


class Mirror:
    """One term's. Thread-safe; `refresh` reads the database, so it is called in a thread."""

    def __init__(self, ledger: Ledger, pool: str) -> None:
        self._ledger = ledger
        self._pool = pool
        self._lock = threading.Lock()
        self._view = View()
        self._number: int | None = None
        self._whole_at = -inf

    def refresh(self, monotonic: float) -> tuple[View, tuple[str, ...]]:
        """The ledger as it is now, and the runs of which this mirror said something else than the ledger's own news
        explain, which must be none.
        """
        with self._lock:
            if self._number is None:
                return self._begin(monotonic)
            if monotonic - self._whole_at >= WHOLE_SECONDS:
                return self._compare(monotonic)
            news = self._ledger.news(self._pool, self._number)
            self._view, self._number = _with(self._view, news), news.number
            return self._compare(monotonic) if len(self._view.gangs) != news.alive else (self._view, ())

    def _begin(self, monotonic: float) -> tuple[View, tuple[str, ...]]:
        whole = self._ledger.whole(self._pool)
        self._view, self._number, self._whole_at = view_of(whole), whole.number, monotonic
        return self._view, ()

    def _compare(self, monotonic: float) -> tuple[View, tuple[str, ...]]:
        assert self._number is not None
        news, whole = self._ledger.news_and_whole(self._pool, self._number)
        here, there = _with(self._view, news), view_of(whole)
        self._view, self._number, self._whole_at = there, whole.number, monotonic
        return there, differences(here, there)


def differences(one: View, other: View) -> tuple[str, ...]:
    """The runs of which two views say different things."""
    found: set[str] = set()
    pairs: tuple[tuple[Mapping[str, object], Mapping[str, object]], ...] = (
        (one.gangs, other.gangs),
        (one.running, other.running),
        (one.holdings, other.holdings),
        (one.evicted_for, other.evicted_for),
    )
    for here, there in pairs:
        found |= here.keys() ^ there.keys()
        found |= {run_id for run_id in here.keys() & there.keys() if here[run_id] != there[run_id]}
    lines = zip(one.waiting, other.waiting, strict=False)
    found |= {here.run_id for here, there in lines if here.run_id != there.run_id}
    return tuple(sorted(found))


def _with(view: View, news: Reading) -> View:
    """The view after these news."""
    changed = [gang for gang in news.gangs if _is_news(gang, view, news)]
    if not changed:
        return view
    gangs, running, begun = dict(view.gangs), dict(view.running), dict(view.begun)
    holdings, evicted_for = dict(view.holdings), dict(view.evicted_for)
    line = list(view.waiting)
    few = len(changed) * 64 < len(line)
    for gang in changed:
        run_id = gang.run_id
        before = gangs.pop(run_id, None)
        begun.pop(run_id, None)
        running.pop(run_id, None)
        running.pop(run_id + COMING, None)
        holdings.pop(run_id, None)
        evicted_for.pop(run_id, None)
        if few and before is not None and before.state is GangState.WAITING:
            del line[bisect_left(line, _place(before), key=_place)]
        if gang.state is GangState.ENDED:
            continue
        gangs[run_id] = gang
        if gang.state is not GangState.WAITING:
            begun[run_id] = gang
        else:
            if run_id in news.evicted_for:
                evicted_for[run_id] = news.evicted_for[run_id]
            if few:
                insort(line, gang, key=_place)
        held = news.holdings.get(run_id, ())
        if held:
            holdings[run_id] = held
        for record in records_of(gang, held, for_run=news.evicting_for):
            # What the planner has worked out from a record that says the same still holds: it goes by identity.
            known_as = view.running.get(record.run_id)
            running[record.run_id] = known_as if known_as == record else record
    if not few:
        line = sorted((gang for gang in gangs.values() if gang.state is GangState.WAITING), key=_place)
    return View(gangs=gangs, waiting=line, running=running, holdings=holdings, evicted_for=evicted_for, begun=begun)


def _is_news(gang: Gang, view: View, news: Reading) -> bool:
    run_id = gang.run_id
    return (
        view.gangs.get(run_id) != (None if gang.state is GangState.ENDED else gang)
        or view.holdings.get(run_id) != news.holdings.get(run_id)
        or view.evicted_for.get(run_id) != news.evicted_for.get(run_id)
    )
