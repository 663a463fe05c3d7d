"""The agent's parts without a process: what it reports, counts, carries out, and lets go of."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from dsec_blocks.cache import Cache
from dsec_blocks.cache.bundles import BundleAddress
from dsec_blocks.cache.errors import TransferCancelled
from dsec_blocks.cache.store import events, evict
from dsec_blocks.cache.transfer import TransferSettings
from dsec_blocks.gateways.clock import SystemClock
from dsec_blocks.ledger import Ledger
from dsec_blocks.ledger.prefetches import PrefetchState
from dsec_blocks.model.devices import Node
from dsec_blocks.model.errors import InvalidRequest
from dsec_workers.lifecycle.data_distance import DataDistance
from dsec_workers.node_agent.access import is_right
from dsec_workers.node_agent.measuring import Tally
from dsec_workers.node_agent.ordered import Ordered, judge
from dsec_workers.node_agent.prefetching import Prefetches, Prefetching, State
from dsec_workers.node_agent.reporting import Reporting, held
from dsec_workers.node_agent.settings import AgentSettings, node_names
from tests.fixtures.ledgers import new_ledger
from tests.workers.node_agent.conftest import eventually

MIB = 2**20
SLOW = TransferSettings(connections=1, bandwidth_bytes_per_second=100.0 * MIB)
"""Slow enough to be stopped on the way."""


def put(tmp_path: Path, name: str, size: int) -> str:
    path = tmp_path / "origin" / name / "weights.bin"
    path.parent.mkdir(parents=True)
    path.write_bytes(name.encode()[:1] * size)
    return str(path.parent)


@pytest.fixture
def ledger(tmp_path: Path) -> Iterator[Ledger]:
    ledger = new_ledger(tmp_path / "ledger.db", clock=SystemClock())
    yield ledger
    ledger.close()


@pytest.fixture
def prefetches(cache: Cache, tmp_path: Path) -> Iterator[Prefetches]:
    """Fetches that have not been started: what is asked for stays queued."""
    found = Prefetches(cache, tmp_path / "asked", at_once=1)
    yield found
    found.stop(seconds=0)


def test_the_report_has_what_is_here_and_how_large_what_left_would_be(cache: Cache, tmp_path: Path) -> None:
    here, gone = put(tmp_path, "here", 1000), put(tmp_path, "gone", 300)
    cache.acquire(here, include=["*.bin"]).release()
    with cache.acquire(gone) as lease:
        bundle = lease.bundle
    evict(cache.store, bundle, why="a test")
    found = {one.address: (one.bytes_resident, one.bytes_total) for one in held(cache.store)}
    assert found == {f"file://{here} (include *.bin)": (1000, 1000), f"file://{gone}": (0, 300)}


def stopped_after(cache: Cache, uri: str, count: int, **options: object) -> None:
    """A fetch that ends early, once `count` bytes have arrived."""
    arrived = [0]

    def progress(size: int) -> None:
        arrived[0] += size

    with pytest.raises(TransferCancelled):
        cache.acquire(uri, progress=progress, cancelled=lambda: arrived[0] >= count, **options)


def slowly(cache: Cache) -> Cache:
    return replace(cache, settings=replace(cache.settings, transfer=SLOW))


def put_more(folder: str, **content: bytes) -> None:
    for name, raw in content.items():
        (Path(folder) / f"{name}.bin").write_bytes(raw)


def reported(cache: Cache) -> dict[str, tuple[int, int]]:
    return {one.address: (one.bytes_resident, one.bytes_total) for one in held(cache.store)}


def test_a_fetch_that_was_interrupted_counts_as_far_as_it_came(cache: Cache, tmp_path: Path) -> None:
    """It was reported as one byte of one."""
    uri = put(tmp_path, "large", 48 * MIB)
    stopped_after(slowly(cache), uri, 40 * MIB)
    ((here, total),) = reported(cache).values()
    assert total == 48 * MIB and 24 * MIB <= here < 48 * MIB
    assert reported(cache) == {f"file://{uri}": (here, total)}


def test_a_fetch_that_has_just_begun_counts_what_has_arrived(cache: Cache, tmp_path: Path) -> None:
    """Its files have their whole length from the beginning, so the node counted as one that has all of it."""
    stopped_after(slowly(cache), put(tmp_path, "large", 48 * MIB), 1)
    ((here, total),) = reported(cache).values()
    assert total == 48 * MIB and here < 24 * MIB


def test_a_fetch_of_what_was_here_in_part_says_how_much_of_the_whole_is_here(cache: Cache, tmp_path: Path) -> None:
    """Only what was missing counted as the bundle."""
    uri = put(tmp_path, "model", 24 * MIB)
    cache.acquire(uri, include=["weights*"]).release()
    put_more(uri, adapter=b"a" * 8 * MIB)
    stopped_after(slowly(cache), uri, 1)
    here, total = reported(cache)[f"file://{uri}"]
    assert total == 32 * MIB and 24 * MIB <= here < 32 * MIB


def test_an_evicted_bundle_still_has_what_another_bundle_keeps(cache: Cache, tmp_path: Path) -> None:
    uri = put(tmp_path, "model", 900)
    put_more(uri, head=b"h" * 100)
    cache.acquire(uri, include=["weights*"]).release()
    with cache.acquire(uri) as lease:
        bundle = lease.bundle
    assert evict(cache.store, bundle, why="a test")
    assert reported(cache) == {f"file://{uri}": (900, 1000), f"file://{uri} (include weights*)": (900, 900)}


def test_a_fetch_of_newer_content_is_believed_before_the_older_content_that_is_here(
    cache: Cache, tmp_path: Path
) -> None:
    """The node that had yesterday's weights counted as one that has today's."""
    uri = put(tmp_path, "model", 8 * MIB)
    cache.acquire(uri).release()
    put_more(uri, weights=b"n" * 16 * MIB)
    stopped_after(slowly(cache), uri, 1, revalidate="always")
    here, total = reported(cache)[f"file://{uri}"]
    assert total == 16 * MIB and here < 16 * MIB
    cache.acquire(uri, revalidate="always").release()
    assert reported(cache) == {f"file://{uri}": (16 * MIB, 16 * MIB)}


def test_the_report_says_how_much_of_the_new_content_a_node_with_the_old_has(
    cache: Cache, ledger: Ledger, tmp_path: Path
) -> None:
    """Who had not asked the origin since counted as one that has all of the new content."""
    uri = put(tmp_path, "model", 900)
    put_more(uri, head=b"h" * 100)
    cache.acquire(uri).release()
    ledger.report_inventory("old", at=cache.store.clock.now(), bandwidth_bytes_per_s=1.0, bundles=held(cache.store))
    put_more(uri, head=b"n" * 300)
    cache.acquire(uri, revalidate="always").release()
    ledger.report_inventory("new", at=cache.store.clock.now(), bandwidth_bytes_per_s=1.0, bundles=held(cache.store))
    data = DataDistance(
        ledger.inventories(), nodes=[Node(name="old"), Node(name="new")], now=cache.store.clock.now()
    ).of([uri])
    assert [(each.node, each.bytes_resident, each.bytes_total) for each in data] == [
        ("new", 1200, 1200),
        ("old", 900, 1200),
    ]


def test_an_interrupted_fetch_that_lies_there_is_no_news_again_and_again(
    cache: Cache, ledger: Ledger, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stopped_after(slowly(cache), put(tmp_path, "large", 16 * MIB), 1)
    reporting = Reporting(ledger, cache, ["node-0"])
    reporting.step(bandwidth_bytes_per_s=None)
    monkeypatch.setattr("dsec_workers.node_agent.reporting.held", lambda store: pytest.fail("nothing has changed"))
    reporting.step(bandwidth_bytes_per_s=None)


def test_a_report_without_news_writes_nothing(cache: Cache, ledger: Ledger, tmp_path: Path) -> None:
    cache.acquire(put(tmp_path, "one", 10)).release()
    reporting = Reporting(ledger, cache, ["node-0", "node-1"])
    reporting.step(bandwidth_bytes_per_s=None)
    first = ledger.inventories()
    assert set(first) == {"node-0", "node-1"} and len(first["node-0"].bundles) == 1
    reporting.step(bandwidth_bytes_per_s=None)
    assert ledger.inventories() == first
    cache.acquire(put(tmp_path, "two", 10)).release()
    reporting.step(bandwidth_bytes_per_s=None)
    assert len(ledger.inventories()["node-1"].bundles) == 2


def test_a_fetch_that_two_runs_want_is_stopped_when_neither_does(prefetches: Prefetches) -> None:
    address = BundleAddress.of("s3://models/llama")
    one = prefetches.want(address, by="run a")
    assert prefetches.want(address, by="run b") is one
    prefetches.unwant(one, by="run a")
    assert not one.cancelled.is_set()
    prefetches.unwant(one, by="run b")
    assert one.cancelled.is_set()
    assert prefetches.want(address, by="run c") is not one, "who comes later gets a fetch that goes on"


def test_an_order_for_two_nodes_of_this_machine_is_one_fetch(
    ledger: Ledger, prefetches: Prefetches, tmp_path: Path
) -> None:
    ordered = Ordered(ledger, prefetches, nodes=["node-0", "node-1"], clock=SystemClock())
    ask = ledger.ask_prefetch([put(tmp_path, "one", 10)], ["node-0", "node-1"], by="ann")
    assert ordered.step() == 2
    assert len(prefetches.all()) == 1
    prefetches.start(ended=lambda one: None)
    eventually(lambda: prefetches.all()[0].state is State.DONE, "it is fetched")
    ordered.step()
    assert {one.state for one in ledger.prefetch_ask(ask)} == {PrefetchState.DONE}
    assert ordered.step() == 0


@pytest.mark.parametrize(
    ("states", "is_then"),
    [
        ((State.QUEUED, State.QUEUED), PrefetchState.ORDERED),
        ((State.DONE, State.QUEUED), PrefetchState.FETCHING),
        ((State.FETCHING, State.FAILED), PrefetchState.FETCHING),
        ((State.DONE, State.DONE), PrefetchState.DONE),
        ((State.DONE, State.FAILED), PrefetchState.FAILED),
        ((), PrefetchState.DONE),
    ],
)
def test_an_order_is_as_far_as_its_fetches(states: tuple[State, ...], is_then: PrefetchState) -> None:
    address = BundleAddress.of("s3://models/llama")
    fetches = [
        Prefetching(id=str(n), address=address, asked_at=0.0, wanted_by=set(), state=state, error="no such bucket")
        for n, state in enumerate(states)
    ]
    state, error = judge(fetches)
    assert state is is_then
    assert error == ("no such bucket" if is_then is PrefetchState.FAILED else None)


def event(**fields: object) -> events.Event:
    return {"what": "acquire", "who": "run 1", "background": False, "cluster": 0, "origin": 0, "fetch": 0.0,
            "verify": 0.0, "seconds": 1.0, "bytes": 100, **fields}  # fmt: skip


def test_hits_are_counted_in_bytes_and_a_prefetch_is_no_start() -> None:
    tally = Tally()
    assert tally.hit_ratio(total=False) is None
    for one in (event(), event(cluster=60, origin=40), event(background=True, origin=100)):
        tally.add(one)
    assert (tally.local_bytes, tally.cluster_bytes, tally.origin_bytes) == (100, 60, 40)
    assert tally.hit_ratio(total=False) == 0.5 and tally.hit_ratio(total=True) == 0.8
    assert tally.stall_seconds == 2.0


def test_bandwidth_follows_the_newest_large_fetches() -> None:
    tally = Tally()
    tally.add(event(origin=1000, fetch=0.1))
    assert tally.rounded_bandwidth is None, "a small fetch tells about latency"
    tally.add(event(origin=100e6, fetch=1.0))
    assert tally.rounded_bandwidth == 100e6
    tally.add(event(origin=200e6, fetch=1.0, background=True))
    assert tally.rounded_bandwidth == 130e6


@pytest.mark.parametrize("header", [None, "", "Bearer", "Bearer wrong", "Basic right", "right"])
def test_any_other_header_than_the_bearer_token_is_wrong(header: str | None) -> None:
    assert not is_right(header, "right")
    assert is_right("bearer right", "right") and is_right("Bearer right", "right")


def test_declared_nodes_of_one_machine_have_one_agent(tmp_path: Path) -> None:
    assert node_names({"DSEC_NODES": "3"}) == ("node-0", "node-1", "node-2")
    assert node_names({"DSEC_NODE": "gpu-7"}) == ("gpu-7",)
    with pytest.raises(InvalidRequest, match="DSEC_NODES"):
        node_names({"DSEC_NODES": "two"})
    with pytest.raises(InvalidRequest, match="--port"):
        AgentSettings.from_environment(port=70_000)
    with pytest.raises(InvalidRequest, match="DSEC_AGENT_PORT"):
        AgentSettings.from_environment(environment={"DSEC_AGENT_PORT": "http"})
    settings = AgentSettings.from_environment(environment={"DSEC_HOME": str(tmp_path), "DSEC_AGENT_PORT": "9410"})
    assert (settings.host, settings.port, settings.directory) == ("127.0.0.1", 9410, tmp_path / "agent")


@pytest.mark.parametrize(
    "address",
    [
        BundleAddress.of("s3://b/x"),
        BundleAddress.of("s3://b/x", include=["*.bin", "*.json"]),
        BundleAddress.of("s3://b/x", exclude=["*.onnx"]),
        BundleAddress.of("s3://b/x (y)", include=["a*"], exclude=["ab*", "ac*"]),
    ],
)
def test_an_address_is_read_as_it_was_written(address: BundleAddress) -> None:
    assert BundleAddress.parse(str(address)) == address
