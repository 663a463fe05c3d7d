"""Whatever happens in whatever order, no device is held twice and a gang is whole or absent."""

import shutil
import tempfile
from pathlib import Path

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from dsec_blocks.ledger import Resumption
from dsec_blocks.model.errors import ReservationConflict, StaleAttempt
from dsec_blocks.model.gangs import HOLDING_STATES, GangState
from tests.blocks.ledger.gangs import POOL, known, on, waiting
from tests.fixtures.clock import ManualClock
from tests.fixtures.ledgers import new_ledger

RUNS = tuple(f"r{n}" for n in range(4))
DEVICES = tuple(f"n{n}/{d}" for n in range(2) for d in range(3))
runs = st.sampled_from(RUNS)
places = st.sets(st.sampled_from(DEVICES), max_size=2)
attempts_back = st.sampled_from([0, 0, 0, 0, 1])
"""Now and then an event comes from the attempt before."""


class LedgerMachine(RuleBasedStateMachine):
    """Random steps of four gangs over six devices, against what may be true of them."""

    folders: Path
    """Where each machine makes a folder of its own."""

    @initialize()
    def begin(self) -> None:
        self.folder = Path(tempfile.mkdtemp(dir=self.folders))
        self.clock = ManualClock()
        self.ledger = new_ledger(self.folder / "ledger.db", clock=self.clock)
        fence = self.ledger.take_lease(POOL, "machine", seen=None)
        assert fence is not None
        self.fence = fence
        self.submitted: dict[str, float] = {}
        self.counted: dict[str, int] = {}
        self.held_seconds = 0.0

    def teardown(self) -> None:
        if not hasattr(self, "ledger"):
            return
        for run_id in RUNS:
            gang = self.ledger.gang(run_id)
            if gang is not None and gang.state in HOLDING_STATES:
                self.ledger.leave(self.fence, run_id, gang.attempt, {"kind": "exited"})
            if gang is not None:
                self.ledger.end(self.fence, run_id, gang.attempt, final_state="COMPLETED")
        assert self.ledger.holders(POOL) == [], "Σ reservations is 0 when all have ended"
        assert {gang.state for gang in self.ledger.gangs(POOL)} <= {GangState.ENDED}
        assert self.ledger.check(observed=()) == []
        assert sum(self.ledger.usage(POOL).values()) == pytest.approx(self.held_seconds)
        self.ledger.close()
        shutil.rmtree(self.folder)

    def _attempt(self, run_id: str, back: int) -> int:
        gang = self.ledger.gang(run_id)
        return 1 if gang is None else gang.attempt - back

    @rule(seconds=st.floats(0.5, 100))
    def time_passes(self, seconds: float) -> None:
        self.held_seconds += seconds * sum(1 for holding in self.ledger.holders(POOL) if holding.turn == 0)
        self.clock.advance(seconds)

    @rule()
    def accrue(self) -> None:
        self.ledger.accrue(self.fence, self.clock.now())

    @rule(run_id=runs)
    def enqueue(self, run_id: str) -> None:
        self.ledger.enqueue(self.fence, [waiting(run_id, team=f"team {run_id[-1]}", submitted_at=self.clock.now())])
        self.submitted.setdefault(run_id, self.clock.now())

    @rule(run_id=runs, devices=st.sets(st.sampled_from(DEVICES), max_size=4), victims=st.sets(runs, max_size=2))
    def admit(
        self, run_id: str, devices: set[str], victims: set[str], resumptions: tuple[Resumption, ...] = ()
    ) -> None:
        before = (self.ledger.gang(run_id), self.ledger.holders(POOL), self.ledger.evictions(POOL))
        expires_at = self.clock.now() + 60
        try:
            gang = self.ledger.admit(
                self.fence, run_id, on(*sorted(devices)), victims=sorted(victims - {run_id}), expires_at=expires_at,
                resumptions=resumptions,
            )  # fmt: skip
        except ReservationConflict:
            assert before == (self.ledger.gang(run_id), self.ledger.holders(POOL), self.ledger.evictions(POOL))
            return
        assert before[0] is not None and gang.attempt == before[0].attempt + 1
        mine = [holding for holding in self.ledger.holders(POOL) if holding.run_id == run_id]
        assert {holding.device for holding in mine if holding.attempt == gang.attempt} == devices

    @rule(run_id=runs, devices=st.sets(st.sampled_from(DEVICES), min_size=1, max_size=3))
    def run(self, run_id: str, devices: set[str]) -> None:
        self.enqueue(run_id)
        self.admit(run_id, devices, set())
        self.claim_and_launch(run_id, 0)
        self.started(run_id, 0)

    @rule(run_id=runs, more=st.sets(st.sampled_from(DEVICES), max_size=2), pick=st.integers(0, 9), to=places)
    def preempt(self, run_id: str, more: set[str], pick: int, to: set[str]) -> None:
        self.enqueue(run_id)
        running = [g for g in self.ledger.gangs(POOL, {GangState.RUNNING}) if g.run_id != run_id]
        if running:
            victim = running[pick % len(running)]
            assert victim.placement is not None
            wanted = set(victim.placement.devices) | more
            resumptions = (self._resumption(victim.run_id, to),) if to else ()
            self.admit(run_id, wanted - to if pick % 2 else wanted, {victim.run_id}, resumptions)

    @rule(pick=st.integers(0, 9), more=st.sets(st.sampled_from(DEVICES), min_size=1, max_size=2))
    def grow(self, pick: int, more: set[str]) -> None:
        running = self.ledger.gangs(POOL, {GangState.RUNNING})
        if running:
            gang = running[pick % len(running)]
            assert gang.placement is not None
            place = self._resumption(gang.run_id, set(gang.placement.devices) | more)
            told = self.ledger.evict(self.fence, [gang.run_id], why="grows", for_run=gang.run_id, resumption=place)
            assert known(self.ledger, gang.run_id).resumes_at == (place.placement if told else None)

    @rule(run_id=runs)
    def goes_on(self, run_id: str) -> None:
        """From wherever it is on its way, to where it was to go."""
        gang = self.ledger.gang(run_id)
        if gang is None or gang.resumes_at is None:
            return
        self.ledger.leave(self.fence, run_id, gang.attempt, {"kind": "evicted"})
        assert self.ledger.requeue(self.fence, run_id, gang.attempt, evicted=True, resume_by=self.clock.now() + 60)
        self.counted[run_id] = self.counted.get(run_id, 0) + 1
        gone_on = known(self.ledger, run_id)
        assert (gone_on.state, gone_on.placement) == (GangState.RESERVED, gang.resumes_at)
        assert gone_on.attempt == gang.attempt + 1

    @rule(run_id=runs)
    def does_not_get_there_in_time(self, run_id: str) -> None:
        gang = self.ledger.gang(run_id)
        if gang is not None and gang.resumes_at is not None:
            self.ledger.undo_admission(self.fence, run_id, gang.attempt + 1, why="late")
            assert known(self.ledger, run_id).resumes_at is None

    def _resumption(self, run_id: str, devices: set[str]) -> Resumption:
        until = self.clock.now() + 60
        return Resumption(run_id=run_id, placement=on(*sorted(devices)), why="goes on", expires_at=until)

    @rule(run_id=runs, back=attempts_back)
    def claim_and_launch(self, run_id: str, back: int) -> None:
        attempt = self._attempt(run_id, back)
        try:
            self.ledger.claimed(self.fence, run_id, attempt, user_retries=None)
            self.ledger.launched(self.fence, run_id, attempt, {"pid": 1})
        except StaleAttempt:
            gang = self.ledger.gang(run_id)
            alive = {GangState.RESERVED, GangState.LAUNCHING, GangState.RUNNING, GangState.EVICTING}
            assert gang is None or back or gang.state not in alive

    @rule(run_id=runs, back=attempts_back)
    def started(self, run_id: str, back: int) -> None:
        self.ledger.started(self.fence, run_id, self._attempt(run_id, back), self.clock.now())

    @rule(run_id=runs, back=attempts_back)
    def committed(self, run_id: str, back: int) -> None:
        self.ledger.committed(self.fence, run_id, self._attempt(run_id, back), at=self.clock.now(), step=1, seconds=0.1)

    @rule(run_ids=st.sets(runs, max_size=2))
    def evict(self, run_ids: set[str]) -> None:
        self.ledger.evict(self.fence, sorted(run_ids), why="drain")

    @rule(pick=st.integers(0, 9), back=attempts_back)
    def withdraw(self, pick: int, back: int) -> None:
        evicting = self.ledger.gangs(POOL, {GangState.EVICTING})
        if evicting:
            run_id = evicting[pick % len(evicting)].run_id
            self.ledger.withdraw_eviction(self.fence, run_id, self._attempt(run_id, back))

    @rule(run_id=runs, back=attempts_back)
    def undo(self, run_id: str, back: int) -> None:
        self.ledger.undo_admission(self.fence, run_id, self._attempt(run_id, back), why="late")

    @rule(run_id=runs, back=attempts_back)
    def release(self, run_id: str, back: int) -> None:
        gang = self.ledger.gang(run_id)
        if gang is not None and gang.state is not GangState.RESERVED:  # before that it has no processes
            self.ledger.release_devices(self.fence, run_id, self._attempt(run_id, back))

    @rule(run_id=runs, back=attempts_back)
    def leave(self, run_id: str, back: int) -> None:
        self.ledger.leave(self.fence, run_id, self._attempt(run_id, back), {"kind": "exited"})

    @rule(run_id=runs, back=attempts_back, evicted=st.booleans())
    def requeue(self, run_id: str, back: int, evicted: bool) -> None:
        if self.ledger.requeue(self.fence, run_id, self._attempt(run_id, back), evicted=evicted):
            self.counted[run_id] = self.counted.get(run_id, 0) + evicted

    @rule(run_id=runs, back=attempts_back)
    def end(self, run_id: str, back: int) -> None:
        self.ledger.end(self.fence, run_id, self._attempt(run_id, back), final_state="COMPLETED")

    @invariant()
    def the_ledger_is_sound(self) -> None:
        assert self.ledger.check() == []

    @invariant()
    def no_device_is_held_twice_and_gangs_are_whole_or_absent(self) -> None:
        holdings = self.ledger.holders(POOL)
        assert len({(h.device, h.turn) for h in holdings}) == len(holdings)
        for run_id in {h.run_id for h in holdings}:
            gang = known(self.ledger, run_id)
            held = {h.device for h in holdings if (h.run_id, h.attempt) == (run_id, gang.attempt)}
            coming = {h.device for h in holdings if (h.run_id, h.attempt) == (run_id, gang.attempt + 1)}
            assert len(held) + len(coming) == sum(h.run_id == run_id for h in holdings)
            assert gang.placement is not None
            assert held in (set(gang.placement.devices), set())
            assert coming == (set(gang.resumes_at.devices) if gang.resumes_at is not None else set())

    @invariant()
    def first_submit_times_and_evictions_are_kept(self) -> None:
        for gang in self.ledger.gangs(POOL):
            assert gang.submitted_at == self.submitted[gang.run_id]
            assert gang.evictions == self.counted.get(gang.run_id, 0)


@pytest.mark.slow
def test_any_order_of_steps_keeps_the_invariants(tmp_path: Path) -> None:
    from hypothesis.stateful import run_state_machine_as_test

    LedgerMachine.folders = tmp_path
    run_state_machine_as_test(
        LedgerMachine,
        settings=settings(
            max_examples=40,
            stateful_step_count=40,
            deadline=None,
            suppress_health_check=list(HealthCheck),
            phases=[Phase.explicit, Phase.reuse, Phase.generate],  # shrinking would outlast the test's time limit
        ),
    )
