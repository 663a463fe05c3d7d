"""A gang's acquires in a few numbers: a bundle once a member, of the waits the longest."""

from typing import Any

from dsec_workers.clusters.cache_figures import CacheFigures
from dsec_workers.clusters.local.acquires import Acquires


def told(**fields: Any) -> dict[str, Any]:
    usual = {"member": 0, "rank": 0, "uri": "s3://b/x", "bytes": 100, "cluster": 0, "origin": 0, "seconds": 0.0}
    return {**usual, "fetch": 0.0, "verify": 0.0, **fields}


def test_the_ranks_of_a_node_that_wait_for_one_fetch_do_not_make_it_a_hit() -> None:
    acquires = Acquires(3)
    acquires.add(told(origin=100, seconds=4.0, fetch=3.0, verify=0.5))
    for rank in range(1, 8):
        metrics = acquires.add(told(rank=rank, seconds=4.2))
    found = CacheFigures.from_metrics(metrics, attempt=3)
    assert found is not None
    assert (found.total_bytes, found.origin_bytes, found.local_hit_ratio) == (100, 100, 0.0)
    assert (found.stall_seconds, found.fetch_seconds, found.verify_seconds) == (4.2, 3.0, 0.5)


def test_members_add_up_and_a_process_waits_for_one_bundle_after_the_other() -> None:
    acquires = Acquires(1)
    acquires.add(told(cluster=60, seconds=1.0))
    acquires.add(told(uri="s3://b/y", bytes=300, seconds=2.0))
    found = CacheFigures.from_metrics(acquires.add(told(member=1, rank=1, origin=100, seconds=2.5)), attempt=1)
    assert found is not None
    assert (found.total_bytes, found.cluster_bytes, found.origin_bytes) == (500, 60, 100)
    assert found.stall_seconds == 3.0
    assert (found.local_hit_ratio, found.total_hit_ratio) == (1 - 160 / 500, 1 - 100 / 500)


def test_of_another_attempt_they_say_nothing() -> None:
    assert CacheFigures.from_metrics(Acquires(1).add(told()), attempt=2) is None
    assert CacheFigures.from_metrics({"loss": 1.0}, attempt=1) is None
