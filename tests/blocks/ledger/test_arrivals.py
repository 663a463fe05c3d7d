"""What has arrived lately is counted once, kept through restarts, and slowly forgotten."""

from collections.abc import Iterable
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dsec_blocks.ledger import Arrivals, Fence, Ledger
from dsec_blocks.ledger.arrivals import FORGOTTEN_ARRIVALS, HALF_LIFE_ARRIVALS, kind_of, request_of
from dsec_blocks.model.errors import LedgerError
from dsec_blocks.model.names import ENV_FAULT
from dsec_blocks.model.requests import GangRequest, Topology
from tests.blocks.ledger.gangs import POOL, waiting

TWO, EIGHT = GangRequest(devices_per_node=2), GangRequest(nodes=4, devices_per_node=8, gpu_model="H100")
KINDS = st.builds(
    GangRequest,
    nodes=st.integers(1, 4),
    devices_per_node=st.integers(0, 8),
    cpus=st.sampled_from([None, 0.5, 4.0]),
    memory_bytes=st.sampled_from([None, 1 << 30]),
    gpu_model=st.sampled_from([None, "H100", "H100|H200"]),
    gpu_memory_bytes=st.sampled_from([None, 1 << 36]),
)


def enqueue(ledger: Ledger, fence: Fence, requests: Iterable[GangRequest], *, first: int = 0) -> None:
    gangs = [replace(waiting(f"r{first + n}"), request=request) for n, request in enumerate(requests)]
    ledger.enqueue(fence, gangs)


def test_every_new_gang_counts_once_with_its_members(ledger: Ledger, fence: Fence) -> None:
    enqueue(ledger, fence, [TWO, EIGHT, TWO])
    enqueue(ledger, fence, [TWO, EIGHT, TWO])
    found = ledger.arrivals(POOL)
    assert found.number == 3
    assert {kind: round(weight, 2) for kind, weight in found.weights().items()} == {
        kind_of(TWO): 2.0,
        kind_of(EIGHT): 4.0,
    }
    assert ledger.arrivals("other") == Arrivals()


def test_a_gang_that_comes_again_is_no_arrival(ledger: Ledger, fence: Fence) -> None:
    enqueue(ledger, fence, [TWO])
    ledger.forget_waiting(fence, ["r0"])
    enqueue(ledger, fence, [TWO])
    assert ledger.arrivals(POOL).number == 1


@pytest.mark.parametrize(("mode", "counted"), [("error", 0), ("lost", 1)])
def test_gangs_and_their_count_are_written_together(
    ledger: Ledger, fence: Fence, monkeypatch: pytest.MonkeyPatch, mode: str, counted: int
) -> None:
    monkeypatch.setenv(ENV_FAULT, f"ledger.enqueue:{mode}")
    with pytest.raises(LedgerError):
        enqueue(ledger, fence, [TWO])
    assert len(ledger.gangs(POOL)) == ledger.arrivals(POOL).number == counted
    monkeypatch.delenv(ENV_FAULT)
    enqueue(ledger, fence, [TWO])
    assert ledger.arrivals(POOL).number == 1


@given(st.lists(KINDS, max_size=20), st.integers(0, 20))
def test_counting_in_pieces_is_counting_at_once(requests: list[GangRequest], cut: int) -> None:
    assert Arrivals().after(requests[:cut]).after(requests[cut:]) == Arrivals().after(requests)


def test_what_is_read_is_what_was_counted(ledger: Ledger, fence: Fence) -> None:
    requests = [TWO, EIGHT, replace(TWO, cpus=4.0), TWO, EIGHT]
    enqueue(ledger, fence, requests[:2])
    enqueue(ledger, fence, requests[2:], first=2)
    assert ledger.arrivals(POOL) == Arrivals().after(requests)


def test_an_arrival_counts_half_after_its_half_life() -> None:
    found = Arrivals().after([EIGHT]).after([TWO] * HALF_LIFE_ARRIVALS)
    assert found.weights()[kind_of(EIGHT)] == 2.0


def test_a_kind_that_stays_away_is_forgotten(ledger: Ledger, fence: Fence, statements) -> None:
    enqueue(ledger, fence, [EIGHT, TWO])
    statements(f"UPDATE arrivals SET at = {FORGOTTEN_ARRIVALS + 1} WHERE at = 2")
    enqueue(ledger, fence, [TWO], first=2)
    assert set(ledger.arrivals(POOL).kinds) == {kind_of(TWO)}


@given(KINDS)
def test_a_kind_stands_for_what_a_member_asks_and_nothing_else(request: GangRequest) -> None:
    alike = replace(request, nodes=1, topology=Topology.RACK, priority=7, inputs=("s3://b/x",))
    assert kind_of(alike) == kind_of(request) == kind_of(request_of(kind_of(request)))
