"""What a worker keeps of the ledger is what the ledger says, whatever was written, by whom, and in which order."""

from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import initialize, rule, run_state_machine_as_test

from dsec_blocks.ledger import Fence, Holding, Ledger, Resumption
from dsec_blocks.ledger.changes import ALIVE
from dsec_blocks.model.devices import Device, Node
from dsec_workers.lifecycle import mirror as mirrors
from dsec_workers.lifecycle.admission_checks import AdmissionChecks
from dsec_workers.lifecycle.mirror import Mirror, differences, view_of
from dsec_workers.lifecycle.orders import Orders
from dsec_workers.lifecycle.plan_input import Line, facts_of, snapshot_of
from dsec_workers.scheduling import Policy, plan
from dsec_workers.scheduling.snapshot import Snapshot
from tests.blocks.ledger.gangs import LATER, POOL, admitted, known, on, running, waiting
from tests.blocks.ledger.test_invariants import DEVICES, RUNS, LedgerMachine

POLICY = Policy(consolidation=True, evictions_per_team=3)
NODES = tuple(
    Node(
        name=name,
        devices=tuple(
            Device(uuid=uuid, node=name, index=int(uuid[-1]), model="H100", memory_bytes=2**36)
            for uuid in DEVICES if uuid.startswith(name)
        ),
    )
    for name in ("n0", "n1")
)  # fmt: skip


class MirrorMachine(LedgerMachine):
    """The ledger's own machine, and beside it a worker that looks now and then."""

    @initialize()
    def look_from_the_start(self) -> None:
        self.mirror: Mirror | None = None
        self.last: Snapshot | None = None
        self.line = Line()

    @rule(ended_before=st.sampled_from([0.0, 2e9]))
    def prune(self, ended_before: float) -> None:
        self.ledger.prune(self.fence, ended_before=ended_before, decided_before=0.0)
        for run_id in RUNS:
            if self.ledger.gang(run_id) is None:
                self.submitted.pop(run_id, None)
                self.counted.pop(run_id, None)

    @rule()
    def another_leads(self) -> None:
        self.ledger.resign(self.fence)
        fence = self.ledger.take_lease(POOL, "successor", seen=None)
        assert fence is not None
        self.fence = fence

    @rule(run_id=st.sampled_from(RUNS), step=st.integers(0, 9))
    def progress(self, run_id: str, step: int) -> None:
        gang = self.ledger.gang(run_id)
        if gang is not None:
            self.ledger.progressed(self.fence, run_id, gang.attempt, step=step, has_on_evict=True)

    @rule(run_id=st.sampled_from(RUNS), text=st.sampled_from(["a", "b"]))
    def tell(self, run_id: str, text: str) -> None:
        self.ledger.set_reasons(self.fence, {run_id: ("waits-for-capacity", text)})

    @rule()
    def look(self) -> None:
        """What is kept equals what is read anew, and what it makes of it plans the same."""
        fresh = view_of(self.ledger.whole(POOL))
        if self.mirror is None:
            self.mirror = Mirror(self.ledger, POOL)
        view, told = self.mirror.refresh(0.0)
        assert told == () or not {gang.run_id for gang in fresh.gangs.values()} & set(told), "only a pruned run"
        assert differences(view, fresh) == ()
        assert list(fresh.gangs) == [gang.run_id for gang in self.ledger.gangs(POOL, ALIVE)]
        assert dict(fresh.evicted_for) == self.ledger.preemptors(POOL)
        assert sorted(view.held(), key=_key) == sorted(self.ledger.holders(POOL), key=_key)
        now = self.clock.now()
        facts = [
            facts_of(self.ledger, POOL, now=now, policy=POLICY, nodes=NODES, view=each, orders=Orders())
            for each in (view, fresh)
        ]
        self.last = snapshot_of(facts[0], self.last)
        anew = snapshot_of(facts[1])
        assert {g.run_id: g for g in self.last.gangs()} == {g.run_id: g for g in anew.gangs()}
        queue, _ = self.line.queue(view, AdmissionChecks(), now=now)
        again, _ = Line().queue(fresh, AdmissionChecks(), now=now)
        assert queue == again
        assert plan(self.last, queue, POLICY, now) == plan(anew, again, POLICY, now)


def _key(holding: Holding) -> tuple[str, int]:
    return holding.device, holding.turn


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_the_mirror_is_the_ledger_after_any_order_of_writes(tmp_path: Path) -> None:
    MirrorMachine.folders = tmp_path
    run_state_machine_as_test(
        MirrorMachine,
        settings=settings(
            max_examples=40,
            stateful_step_count=40,
            deadline=None,
            suppress_health_check=list(HealthCheck),
            phases=[Phase.explicit, Phase.reuse, Phase.generate],
        ),
    )


def test_a_new_term_begins_by_reading_everything_and_goes_on_with_the_news(
    ledger: Ledger, fence: Fence, monkeypatch: pytest.MonkeyPatch
) -> None:
    running(ledger, fence, "a", "n0/0")
    ledger.enqueue(fence, [waiting("b"), waiting("c")])
    read: list[str] = []
    for name in ("whole", "news", "news_and_whole"):
        monkeypatch.setattr(ledger, name, _noting(read, name, getattr(ledger, name)))
    mirror = Mirror(ledger, POOL)
    assert set(mirror.refresh(0.0)[0].gangs) == {"a", "b", "c"}
    ledger.enqueue(fence, [waiting("d", submitted_at=5.0)])
    view, _ = mirror.refresh(1.0)
    assert [gang.run_id for gang in view.waiting] == ["d", "b", "c"]
    assert read == ["whole", "news"]
    mirror.refresh(mirrors.WHOLE_SECONDS)
    assert read == ["whole", "news", "news_and_whole"]
    assert Mirror(ledger, POOL).refresh(0.0)[0] == view
    assert read[-1] == "whole"


def test_only_the_gangs_of_the_last_transactions_are_read_again(ledger: Ledger, fence: Fence) -> None:
    ledger.enqueue(fence, [waiting(f"r{n}") for n in range(50)])
    before = ledger.whole(POOL).number
    ledger.set_reasons(fence, {"r7": ("waits-for-capacity", "full")})
    ledger.beat(fence)
    assert [gang.run_id for gang in ledger.news(POOL, before + 1).gangs] == ["r7"]
    assert ledger.news(POOL, before + 2).gangs == []


def test_who_moves_up_behind_a_gang_that_released_its_devices_is_news(ledger: Ledger, fence: Fence) -> None:
    victim = running(ledger, fence, "victim", "n0/0")
    admitted(ledger, fence, "next", "n0/0", victims=("victim",))
    mirror = Mirror(ledger, POOL)
    view, _ = mirror.refresh(0.0)
    assert view.running["next"].promised
    ledger.release_devices(fence, "victim", victim.attempt)
    view, told = mirror.refresh(1.0)
    assert not view.running["next"].promised
    assert view.running["victim"].placement.devices == ()
    assert told == ()


@pytest.mark.parametrize(
    ("by_hand", "at"),
    [
        ("UPDATE gangs SET evictions = 7 WHERE run_id = 'b'", mirrors.WHOLE_SECONDS),
        ("DELETE FROM gangs WHERE run_id = 'b'", 2.0),
    ],
)
def test_what_was_written_by_hand_is_found_by_the_clock_or_by_the_count(
    ledger: Ledger, fence: Fence, by_hand: str, at: float
) -> None:
    ledger.enqueue(fence, [waiting("a"), waiting("b")])
    ledger.beat(fence)
    mirror = Mirror(ledger, POOL)
    mirror.refresh(0.0)
    with ledger.transaction(at="test.plant") as connection:
        connection.exec_driver_sql(by_hand)
    view, told = mirror.refresh(at)
    assert told == ("b",)
    assert differences(view, view_of(ledger.whole(POOL))) == ()
    assert known(ledger, "a") == view.gangs["a"]
    assert mirror.refresh(at + 1) == (view, ())


def _noting(read: list[str], name: str, method: Callable[..., object]) -> Callable[..., object]:
    def noted(*args: object) -> object:
        read.append(name)
        return method(*args)

    return noted


def test_a_gang_that_goes_on_elsewhere_is_mirrored_at_each_step(ledger: Ledger, fence: Fence) -> None:
    gang = running(ledger, fence, "m", "n0/0")
    mirror = Mirror(ledger, POOL)
    mirror.refresh(0.0)
    place = Resumption(run_id="m", placement=on("n1/0"), why="moves", expires_at=LATER)
    steps: list[Callable[[], object]] = [
        lambda: ledger.evict(fence, ["m"], why="moves", for_run="big", resumption=place),
        lambda: ledger.release_devices(fence, "m", gang.attempt),
        lambda: ledger.leave(fence, "m", gang.attempt, {"kind": "evicted"}),
        lambda: ledger.requeue(fence, "m", gang.attempt, evicted=True, resume_by=LATER),
    ]
    seen = []
    for step in steps:
        assert step()
        view, told = mirror.refresh(0.0)
        assert told == ()
        assert differences(view, view_of(ledger.whole(POOL))) == ()
        seen.append(sorted(view.running))
    assert seen == [["m", "m (to come)"], ["m", "m (to come)"], ["m (to come)"], ["m"]]
