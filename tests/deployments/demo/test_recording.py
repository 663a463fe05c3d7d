"""The recorder turns samples of the ledger into stretches of time; the report draws them into one file."""

from pathlib import Path

import pytest

from dsec_blocks.ledger import Fence, Ledger
from dsec_blocks.model.devices import Device, Node
from dsec_blocks.model.gangs import Gang, GangState, MemberPlacement, Placement
from dsec_blocks.model.requests import GangRequest
from dsec_deployments.demo.claims import Claims
from dsec_deployments.demo.recording import Recorder, Recording
from dsec_deployments.demo.report import write_report
from tests.fixtures.clock import ManualClock
from tests.fixtures.ledgers import new_ledger

POOL = "demo"


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def ledger(tmp_path: Path, clock: ManualClock) -> Ledger:
    return new_ledger(tmp_path / "ledger.db", clock=clock)


def leader(ledger: Ledger) -> Fence:
    fence = ledger.take_lease(POOL, "test", seen=None)
    assert fence is not None
    return fence


def one_gang(ledger: Ledger, fence: Fence, clock: ManualClock) -> Placement:
    devices = tuple(
        Device(uuid=f"GPU-{i}", node="n1", index=i, model="H100", memory_bytes=80 * 2**30) for i in range(2)
    )
    ledger.put_nodes(fence, [Node(name="n1", devices=devices)])
    gang = Gang(
        run_id="run-1",
        name="finetune",
        pool=POOL,
        team="default",
        request=GangRequest(devices_per_node=2),
        state=GangState.WAITING,
        submitted_at=clock.now(),
        eligible_at=clock.now(),
    )
    ledger.enqueue(fence, [gang])
    return Placement(members=(MemberPlacement(node="n1", devices=("GPU-0", "GPU-1")),))


def test_a_gang_is_first_seen_waiting_then_holding_its_devices(ledger: Ledger, clock: ManualClock) -> None:
    fence = leader(ledger)
    placement = one_gang(ledger, fence, clock)
    recording = Recording(began=clock.now())
    recorder = Recorder(ledger, POOL, recording, clock=clock)
    ledger.set_reasons(fence, {"run-1": ("waits-for-capacity", "needs 2 H100; 0 free")})
    recorder.sample()
    clock.advance(3)
    recorder.sample()
    ledger.admit(fence, "run-1", placement, expires_at=clock.now() + 60)
    recorder.sample()
    clock.advance(5)
    recorder.sample()
    assert [(wait.run, wait.end - wait.start, wait.reason) for wait in recording.waits] == [
        ("finetune", 3, "needs 2 H100; 0 free")
    ]
    assert {(span.device, span.run, span.end - span.start) for span in recording.spans} == {
        ("GPU-0", "finetune", 5),
        ("GPU-1", "finetune", 5),
    }


def test_the_report_is_one_file_that_loads_nothing_from_elsewhere(
    ledger: Ledger, clock: ManualClock, tmp_path: Path
) -> None:
    fence = leader(ledger)
    placement = one_gang(ledger, fence, clock)
    recording = Recording(began=clock.now())
    recorder = Recorder(ledger, POOL, recording, clock=clock)
    recorder.sample()
    ledger.admit(fence, "run-1", placement, expires_at=clock.now() + 60)
    recorder.sample()
    recording.losses["evicted and resumed"] = {0: 2.3, 1: 1.9}
    claims = Claims()
    claims.make("a <claim>", True, 1.0, "s")
    write_report(tmp_path / "report.html", recording, claims.made)
    page = (tmp_path / "report.html").read_text()
    assert "a &lt;claim&gt;" in page
    assert "finetune" in page
    assert "<script src=" not in page
    assert "<link" not in page
