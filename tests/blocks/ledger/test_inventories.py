"""What nodes say they hold is kept once, read once, and forgotten when a node falls silent."""

from dataclasses import replace

from dsec_blocks.ledger import CachedBundle, Fence, Inventory, Ledger
from dsec_blocks.ledger.inventories import CHECKED_TOLERANCE_SECONDS, REFRESH_SECONDS, STALE_SECONDS
from dsec_blocks.model.content_sketch import sketch_of
from tests.fixtures.clock import ManualClock

LLAMA = CachedBundle(address="s3://models/llama", digest="a" * 64, bytes_total=4 << 30, bytes_resident=3 << 30)
CIFAR = CachedBundle(address="s3://data/cifar", digest="b" * 64, bytes_total=1 << 20, bytes_resident=1 << 20)


def _report(ledger: Ledger, node: str, *bundles: CachedBundle, at: float, bandwidth: float | None = 1e8) -> bool:
    return ledger.report_inventory(node, at=at, bandwidth_bytes_per_s=bandwidth, bundles=bundles)


def test_a_report_replaces_what_the_node_said_before(ledger: Ledger) -> None:
    assert _report(ledger, "n1", LLAMA, CIFAR, at=10.0)
    assert _report(ledger, "n2", at=10.0, bandwidth=None)
    assert _report(ledger, "n1", CIFAR, at=11.0, bandwidth=2e8)
    found = ledger.inventories()
    assert found["n1"].bundles == (CIFAR,) and found["n1"].bandwidth_bytes_per_s == 2e8 and found["n1"].at == 11.0
    assert found["n2"].bundles == () and found["n2"].bandwidth_bytes_per_s is None


def test_the_same_report_in_any_order_is_written_once(ledger: Ledger) -> None:
    assert _report(ledger, "n1", LLAMA, CIFAR, at=10.0)
    assert not _report(ledger, "n1", CIFAR, LLAMA, at=12.0)
    assert ledger.inventories()["n1"].at == 10.0
    assert _report(ledger, "n1", CIFAR, replace(LLAMA, bytes_resident=4 << 30), at=12.0)


def test_an_unchanged_report_is_written_again_before_the_node_counts_as_silent(ledger: Ledger) -> None:
    assert REFRESH_SECONDS * 2 < STALE_SECONDS
    _report(ledger, "n1", LLAMA, at=10.0)
    assert _report(ledger, "n1", LLAMA, at=10.0 + REFRESH_SECONDS)
    assert ledger.inventories()["n1"].at == 10.0 + REFRESH_SECONDS


def test_a_report_after_the_clock_went_back_is_written(ledger: Ledger) -> None:
    _report(ledger, "n1", LLAMA, at=10_000.0)
    assert _report(ledger, "n1", LLAMA, at=10.0)
    assert ledger.inventories()["n1"].at == 10.0


def test_an_inventory_that_is_too_old_is_not_believed() -> None:
    inventory = Inventory(node="n1", at=100.0, bandwidth_bytes_per_s=None)
    assert not inventory.is_stale(100.0 + STALE_SECONDS)
    assert inventory.is_stale(100.1 + STALE_SECONDS)


def test_what_is_known_already_is_not_read_again(ledger: Ledger) -> None:
    _report(ledger, "n1", LLAMA, at=10.0)
    _report(ledger, "n2", CIFAR, at=10.0)
    known = ledger.inventories()
    _report(ledger, "n1", LLAMA, at=60.0)
    _report(ledger, "n2", LLAMA, CIFAR, at=60.0)
    found = ledger.inventories(known)
    assert found == ledger.inventories()
    assert found["n1"].bundles is known["n1"].bundles and found["n1"].at == 60.0
    assert found["n2"].bundles == (CIFAR, LLAMA)


def test_a_node_that_fell_silent_long_ago_is_forgotten(ledger: Ledger, fence: Fence, clock: ManualClock) -> None:
    _report(ledger, "old", LLAMA, at=clock.now() - 100.0)
    _report(ledger, "new", LLAMA, at=clock.now())
    gone = ledger.prune(fence, ended_before=0.0, decided_before=clock.now() - 50.0)
    assert gone.inventories == 1
    assert set(ledger.inventories()) == {"new"}
    assert not ledger.prune(fence, ended_before=0.0, decided_before=clock.now() - 50.0)


def test_a_bandwidth_that_differs_by_chance_is_no_news(ledger: Ledger) -> None:
    _report(ledger, "n1", LLAMA, at=10.0, bandwidth=1e8)
    assert not _report(ledger, "n1", LLAMA, at=11.0, bandwidth=1.09e8)
    assert _report(ledger, "n1", LLAMA, at=12.0, bandwidth=1.2e8)
    assert _report(ledger, "n1", LLAMA, at=13.0, bandwidth=None)
    assert not _report(ledger, "n1", LLAMA, at=14.0, bandwidth=None)


def test_that_an_address_still_stands_for_the_same_is_written_now_and_then(ledger: Ledger) -> None:
    seen = replace(LLAMA, checked_at=0.0, sketch=sketch_of({"a" * 64: 4 << 30}, is_here=lambda digest: True))
    assert _report(ledger, "n1", seen, at=10.0)
    assert ledger.inventories()["n1"].bundles == (seen,)
    assert not _report(ledger, "n1", replace(seen, checked_at=CHECKED_TOLERANCE_SECONDS - 1), at=10.0)
    later = replace(seen, checked_at=CHECKED_TOLERANCE_SECONDS)
    assert _report(ledger, "n1", later, at=10.0)
    assert ledger.inventories()["n1"].bundles == (later,)
