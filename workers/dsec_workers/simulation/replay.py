"""The event loop: a trace, a cluster, a scheduler and a virtual clock.

All that happens within one instant is heard before the scheduler is asked once. The loop knows the durations and
charges interruptions; the scheduler knows neither. Time is whatever the events say: no clock is read.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from heapq import heappop, heappush
from math import ceil

from dsec_blocks.model.devices import Node
from dsec_workers.simulation.jobs import Trace, Waiting
from dsec_workers.simulation.overheads import Overheads
from dsec_workers.simulation.recording import Outcome, Recording, Sample, Span
from dsec_workers.simulation.schedulers import Grow, Scheduler, Start
from dsec_workers.simulation.site import NotFree, Seats, Shape, Site, without


@dataclass(frozen=True, slots=True)
class Failure:
    """A node that is down from `at` for `seconds`."""

    node: str
    at: float
    seconds: float


@dataclass(slots=True)
class _Attempt:
    """A job that holds devices or was promised them."""

    id: str
    attempt: int
    seats: Seats
    waits_for: set[str] = field(default_factory=set)
    started_at: float | None = None
    leaving: bool = False
    resized: bool = False
    """It goes on from a resize."""


class Replay:
    """One run of a trace. `run` does it all; `steps` does it instant by instant."""

    def __init__(
        self,
        trace: Trace,
        nodes: Sequence[Node],
        scheduler: Scheduler,
        *,
        overheads: Overheads = Overheads(),
        failures: Sequence[Failure] = (),
        tick: float = 1.0,
        stopwatch: Callable[[], float] | None = None,
    ) -> None:
        self.trace, self.scheduler, self.overheads, self.tick = trace, scheduler, overheads, tick
        self.site = Site(nodes)
        self.stopwatch = stopwatch
        self.recording = Recording(
            policy=scheduler.name,
            trace=trace.name,
            devices=self.site.devices,
            nodes=tuple(node.name for node in self.site.nodes),
        )
        self.now = trace.begins_at
        self.ended = 0
        self.jobs = {job.id: job for job in trace.jobs}
        self._left = {job.id: job.duration for job in trace.jobs}
        """Seconds of work that are left and safe, as of each job's full size."""
        self._waiting: dict[str, int] = {}
        self._present: dict[str, _Attempt] = {}
        self._coming: dict[str, Seats] = {}
        """Jobs that are moved or resized, and the devices on which they go on: theirs already."""
        self._waiting_devices = 0
        self._events: list[tuple[float, int, str, object]] = []
        self._count = 0
        self._next_job = 0
        self._woken_for: float | None = None
        for failure in failures:
            self._put(failure.at, "down", failure)

    def run(self) -> Recording:
        """Replay to the end."""
        for _ in self.steps():
            pass
        return self.recording

    def steps(self) -> Iterator[float]:
        """Replay; yields the time after every instant."""
        jobs = self.trace.jobs
        for job in jobs:
            outcome = self.recording.outcomes[job.id] = Outcome(job)
            least = job.request.min_nodes if self.scheduler.elastic else None
            if not self.site.fits_when_empty(Shape.of(job.request, least)):
                outcome.refused = f"{job.request.describe()} never fits this cluster"
                self.ended += 1
        self._adopt()
        while True:
            upcoming = self._next_at()
            if upcoming is None:
                return
            self.now = upcoming
            while self._next_job < len(jobs) and self._tick(jobs[self._next_job].submit_at) <= self.now:
                job = jobs[self._next_job]
                self._next_job += 1
                if self.recording.outcomes[job.id].refused is None and job.id not in self.trace.placed:
                    self._line_up(job.id)
            while self._events and self._events[0][0] <= self.now:
                _, _, what, about = heappop(self._events)
                self._happen(what, about)
            self._decide()
            yield self.now

    def _adopt(self) -> None:
        """Those that run already hold what they hold, the leaving until they are gone."""
        leaving, promised = self.trace.leaving, self.trace.promised
        rank = {id: (id in promised, id in leaving) for id in self.trace.placed}
        for id in sorted(rank, key=lambda id: rank[id]):
            outcome, seats = self.recording.outcomes[id], self.site.seats_of(self.trace.placed[id])
            if outcome.refused is not None:
                outcome.refused = None
                self.ended -= 1
            outcome.attempts = 1
            mine = tuple((node, mask & self.site.free[node]) for node, mask in seats)
            if id not in promised:
                seats = mine  # what a leaving gang has released already is somebody else's
            self.site.take(mine)
            present = self._present[id] = _Attempt(id, 1, seats)
            self.scheduler.adopted(self._told(id), seats, self.now, leaving=id in leaving, promised=id in promised)
            if id in promised:
                present.waits_for = {other for other in leaving if _overlap(self._present[other].seats, seats)}
            if not present.waits_for:
                self._begin(present)
        self._adopt_places()
        for id in sorted(leaving):
            self._leaves(self._present[id])

    def _adopt_places(self) -> None:
        """Those on their way have the place where they go on, unless somebody else has it."""
        for id, placement in self.trace.coming.items():
            seats = self.site.seats_of(placement)
            more = without(seats, self._present[id].seats) if id in self._present else ()
            if id in self._present and all(mask & ~self.site.free[node] == 0 for node, mask in more):
                self.site.take(more)
                self._coming[id] = seats

    # ---- time -------------------------------------------------------------------------------------------------

    def _tick(self, at: float) -> float:
        """Whole ticks, upwards: what happens within a tick is decided at its end."""
        at = max(at, self.trace.begins_at)
        return ceil(at / self.tick) * self.tick if self.tick else at

    def _next_at(self) -> float | None:
        times = []
        if self._next_job < len(self.trace.jobs):
            times.append(self._tick(self.trace.jobs[self._next_job].submit_at))
        if self._events:
            times.append(self._events[0][0])
        return min(times) if times else None

    def _put(self, at: float, what: str, about: object) -> None:
        self._count += 1
        heappush(self._events, (self._tick(at), self._count, what, about))

    # ---- what happens -----------------------------------------------------------------------------------------

    def _happen(self, what: str, about: object) -> None:
        if what == "wake":
            self._woken_for = None
        elif what == "end":
            assert isinstance(about, tuple)
            id, number, at = about
            present = self._present.get(id)
            if present is not None and present.attempt == number and not present.leaving:
                self._end(present, at)
        elif what == "gone":
            assert isinstance(about, tuple)
            id, number = about
            present = self._present.get(id)
            if present is not None and present.attempt == number:
                self._vacate(present)
                if id in self._coming:
                    self._go_on(present)
                else:
                    self._line_up(id)
        elif what == "down":
            assert isinstance(about, Failure)
            self._fail(about)
        elif what == "up":
            assert isinstance(about, Failure)
            self.site.up[self.site.number[about.node]] = True

    def _go_on(self, moved: _Attempt) -> None:
        """It has left, and has the devices where it goes on, unless a node of theirs went down meanwhile."""
        outcome = self.recording.outcomes[moved.id]
        if not all(self.site.up[node] for node, _ in self._coming[moved.id]):
            outcome.failures += 1
            self._line_up(moved.id)
            return
        outcome.attempts += 1
        seats = self._coming.pop(moved.id)
        present = _Attempt(moved.id, outcome.attempts, seats, resized=len(seats) != len(moved.seats))
        self._present[moved.id] = present
        self._begin(present)

    def _line_up(self, id: str) -> None:
        if id in self._coming:  # a failure came before it could go on
            self.site.give(self._coming.pop(id))
        job = self.jobs[id]
        self._waiting[id] = job.request.devices
        self._waiting_devices += job.request.devices
        self.scheduler.arrived(self._told(id), self.now)

    def _told(self, id: str) -> Waiting:
        """What a scheduler may know of a job."""
        job = self.jobs[id]
        return Waiting(
            id=id,
            team=job.team,
            request=job.request,
            submitted_at=job.submit_at,
            evictions=self.recording.outcomes[id].evictions,
            attained_seconds=job.duration - self._left[id],
        )

    def _end(self, present: _Attempt, at: float) -> None:
        self.recording.outcomes[present.id].finished_at = at
        self.ended += 1
        self._vacate(present, finished=True, at=at)

    def _vacate(self, present: _Attempt, *, finished: bool = False, at: float | None = None) -> None:
        """The devices go to whom they are promised, the rest is free."""
        end = self.now if at is None else at
        del self._present[present.id]
        outcome = self.recording.outcomes[present.id]
        if present.started_at is not None:
            self.recording.spans.append(Span(present.id, present.attempt, present.started_at, end, present.seats))
            held = (end - present.started_at) * _devices(present.seats)
            outcome.held_device_seconds += held
            if present.resized:
                restart = self.overheads.restart_seconds * _devices(present.seats)
                outcome.resize_device_seconds += min(held, restart)
            self.site.busy -= _devices(present.seats)
        self.scheduler.left(present.id, self.now, finished=finished)
        heirs = [other for other in self._present.values() if present.id in other.waits_for]
        promised = [*(seat for heir in heirs for seat in heir.seats), *self._coming.get(present.id, ())]
        self.site.give(tuple(seat for seat in without(present.seats, promised) if seat[1]))
        for heir in heirs:
            heir.waits_for.discard(present.id)
            if not heir.waits_for:
                self._begin(heir)

    def _begin(self, present: _Attempt) -> None:
        outcome = self.recording.outcomes[present.id]
        if not all(self.site.up[node] for node, _ in present.seats):
            outcome.failures += 1  # a node went down between the promise and the start
            self._vacate(present)
            self._line_up(present.id)
            return
        present.started_at = self.now
        if outcome.first_start is None:
            outcome.first_start = self.now
        self.site.busy += _devices(present.seats)
        self.scheduler.began(present.id, self.now)
        work = self._left[present.id] / self._speed(present)
        end = self.now + self.overheads.wall(work, attempt=present.attempt)
        self._put(end, "end", (present.id, present.attempt, end))

    def _speed(self, present: _Attempt) -> float:
        return self.jobs[present.id].speed(len(present.seats))

    def _interrupt(self, present: _Attempt, *, failed: bool, stays: float = 0.0) -> None:
        """Take stock of an attempt that ends before its work does, and holds its devices for so many seconds more."""
        outcome = self.recording.outcomes[present.id]
        if present.started_at is None:
            return
        elapsed, speed = self.now - present.started_at, self._speed(present)
        left = self._left[present.id] / speed
        done = min(left, self.overheads.done(elapsed, attempt=present.attempt))
        kept = min(left, self.overheads.kept(done, failed=failed))
        self._left[present.id] = max(0.0, self._left[present.id] - kept * speed)
        outcome.lost_device_seconds += (elapsed - kept + stays) * _devices(present.seats)
        if self._is_resized(present) and not failed:
            outcome.resize_device_seconds += (done - kept + stays) * _devices(present.seats)

    def _fail(self, failure: Failure) -> None:
        number = self.site.number[failure.node]
        self.site.up[number] = False
        self._put(failure.at + failure.seconds, "up", failure)
        for present in [p for p in self._present.values() if any(node == number for node, _ in p.seats)]:
            if present.id not in self._present or present.started_at is None:
                continue  # promised gangs begin on what is left to them when their victims are gone
            self.recording.outcomes[present.id].failures += 1
            if not present.leaving:
                self._interrupt(present, failed=True)
            self._vacate(present)
            self._line_up(present.id)

    # ---- what is decided --------------------------------------------------------------------------------------

    def _decide(self) -> None:
        watch = self.stopwatch
        began = watch() if watch else 0.0
        decided = self.scheduler.decide(self.site, self.now)
        if watch:
            self.recording.decide_seconds += watch() - began
        self.recording.cycles += 1
        for decision in decided:
            if isinstance(decision, Start):
                self._start(decision)
                continue
            if isinstance(decision, Grow):
                self._reserve(decision.id, decision.seats)
            self._leave(decision.id)
        wake = self.scheduler.wake_at()
        if wake is not None and (self._woken_for is None or wake < self._woken_for):
            self._woken_for = max(wake, self.now + self.tick)
            self._put(self._woken_for, "wake", None)
        self.recording.samples.append(
            Sample(self.now, self.site.busy, len(self._waiting), self._waiting_devices, self.site.fragmented())
        )

    def _start(self, start: Start) -> None:
        self._waiting_devices -= self._waiting.pop(start.id)
        outcome = self.recording.outcomes[start.id]
        outcome.attempts += 1
        before = set(start.victims) | set(start.waits_for) | {id for id, _ in start.goes_on}
        present = _Attempt(start.id, outcome.attempts, start.seats, before)
        for id, seats in start.goes_on:
            self._reserve(id, seats)
        for id in (*start.victims, *(id for id, _ in start.goes_on)):
            self._leave(id)
        theirs = [seat for other in self._present.values() if other.waits_for & before for seat in other.seats]
        theirs += [seat for id in before for seat in self._coming.get(id, ())]
        inherited = without([seat for id in before for seat in self._present[id].seats], theirs)
        self.site.take(without(start.seats, inherited))
        self._present[start.id] = present
        if not before:
            self._begin(present)

    def _reserve(self, id: str, seats: Seats) -> None:
        """Where a job that is about to be told goes on: what it does not hold must be free, and is its own now."""
        self.site.take(without(seats, self._present[id].seats))
        self._coming[id] = seats

    def _is_resized(self, present: _Attempt) -> bool:
        return present.id in self._coming and len(self._coming[present.id]) != len(present.seats)

    def _leave(self, id: str) -> None:
        victim = self._present[id]
        if victim.leaving or victim.started_at is None:
            raise NotFree(f"{id} is leaving or has not begun; it cannot be evicted")
        self._leaves(victim)

    def _leaves(self, victim: _Attempt) -> None:
        victim.leaving = True
        self.recording.outcomes[victim.id].evictions += 1
        self.recording.outcomes[victim.id].resizes += self._is_resized(victim)
        gone_at = self._tick(self.now + self.overheads.checkpoint_seconds)
        self._interrupt(victim, failed=False, stays=gone_at - self.now)
        self._put(gone_at, "gone", (victim.id, victim.attempt))


def _devices(seats: Seats) -> int:
    return sum(mask.bit_count() for _, mask in seats)


def _overlap(one: Seats, other: Seats) -> bool:
    return any(node == number and mask & bits for node, mask in one for number, bits in other)
