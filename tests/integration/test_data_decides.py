"""On a real server: a run goes where its data is, and its nodes are told to fetch what they lack, whatever dies."""

import json
import time
from typing import Any

import pytest

from dsec_blocks.ledger import CachedBundle, PrefetchState
from dsec_blocks.model.gangs import GangState
from tests.integration.site import Site
from tests.integration.test_operators import ordered

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

LLAMA = "s3://models/llama"
GIB = 1 << 30


def hold(site: Site, node: str, *, gib: float) -> None:
    """As the node's agent would report it: so much of four gibibytes, at 100 MB/s."""
    bundle = CachedBundle(address=LLAMA, digest="d" * 64, bytes_total=4 * GIB, bytes_resident=int(gib * GIB))
    site.ledger.report_inventory(node, at=time.time(), bandwidth_bytes_per_s=100e6, bundles=[bundle] if gib else [])


def placed_on(site: Site, run_id: str) -> set[str]:
    gang = site.wait("a place", lambda: (g := site.gang(run_id)) and g.placement and g)
    return {member.node for member in gang.placement.members}


def explained(site: Site, run_id: str) -> dict[str, Any]:
    told: dict[str, Any] = json.loads(ordered(site, "explain", run_id, "--json"))
    return told


def test_a_run_goes_where_its_data_is_and_explain_says_so(site: Site) -> None:
    site.start_worker()
    nodes = [node.name for node in site.wait("the nodes", lambda: site.ledger.nodes(site.pool))]
    blind = site.submit("hello", devices_per_node=1)
    by_chance = placed_on(site, blind).pop()
    site.wait_state(blind, "COMPLETED", seconds=60)
    warm = next(node for node in nodes if node != by_chance)
    hold(site, by_chance, gib=0)
    hold(site, warm, gib=3)

    ordered(site, "freeze", "--why", "a look at what would be")
    run = site.submit("hello", devices_per_node=1, inputs=[LLAMA])
    site.wait_state(run, "AwaitingGPUs")
    waits = explained(site, run)
    assert [(row["node"], row["seconds_saved"]) for row in waits["data"]] == [(warm, 32.0)]
    line = f"data: 3 of 4 GiB on {warm}, saves 32 s there; weighs 0.053 cards in its placement"
    assert line in " ".join(ordered(site, "explain", run).split())

    asked = " ".join(ordered(site, "what-if", "1x1", "-s", f'inputs=["{LLAMA}"]').split())
    assert line in asked, asked

    ordered(site, "thaw")
    assert placed_on(site, run) == {warm}
    site.wait_state(run, "COMPLETED", seconds=60)
    assert [(row["node"], row["cards"]) for row in explained(site, run)["data"]] == [(warm, 32.0 / 600)]
    assert line in " ".join(ordered(site, "explain", run).split())


def test_a_worker_killed_in_the_reservation_leaves_it_with_its_orders_or_without_both(site: Site) -> None:
    worker = site.start_worker(DSEC_FAULT="ledger.admit:kill_after")
    run = site.submit("hello", nodes=2, devices_per_node=1, inputs=[LLAMA])
    worker.wait(timeout=120)
    reserved = site.gang(run)
    assert reserved is not None and reserved.state is GangState.RESERVED
    assert [(o.attempt, o.state) for o in site.ledger.prefetches_of(run)] == [(1, PrefetchState.ORDERED)] * 2
    [order, _] = site.ledger.prefetches_of(run)
    assert site.ledger.prefetch_progress(
        order.node, run, 1, bytes_done=GIB, bytes_total=4 * GIB, state=PrefetchState.FETCHING, at=time.time()
    )
    site.start_worker()
    site.wait_state(run, "COMPLETED", seconds=60)
    site.wait_gang(run, GangState.ENDED)
    assert [(o.attempt, o.state) for o in site.ledger.prefetches_of(run)] == [(1, PrefetchState.WITHDRAWN)] * 2
    assert site.ledger.check(site.pool) == []
    [report] = site.wait(
        "its report", lambda: site.artifacts("dsec-run-report", flow_run_id={"any_": [run]}), seconds=60
    )
    assert f"stopped at 1 GiB of 4 GiB on {order.node}" in report["data"]


def test_a_run_that_is_cancelled_before_its_start_wants_no_data_any_more(site: Site) -> None:
    worker = site.start_worker(DSEC_FAULT="ledger.admit:kill_after")
    run = site.submit("hello", devices_per_node=1, inputs=[LLAMA])
    worker.wait(timeout=120)
    site.set_state(run, "CANCELLED", force=True)
    site.start_worker()
    site.wait_gang(run, GangState.ENDED, seconds=60)
    assert [o.state for o in site.ledger.prefetches_of(run)] == [PrefetchState.WITHDRAWN]
    assert site.ledger.check(site.pool) == []
