"""The agent as others meet it: real process, real HTTP, a real S3 store, a real ledger."""

import json
import signal
import stat
import threading
from pathlib import Path

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families

from dsec_blocks.cache.bundles import BundleAddress
from dsec_blocks.cache.store import check
from dsec_blocks.cache.transfer.journal import arrived_bytes
from dsec_blocks.ledger.prefetches import PrefetchState
from dsec_workers.node_agent.client import AgentError
from tests.fixtures.misbehaving import Exchange, MisbehavingOrigin
from tests.fixtures.s3 import S3Store
from tests.workers.node_agent.conftest import NODE, SECONDS, Home, eventually

pytestmark = [pytest.mark.slow, pytest.mark.timeout(240)]
MIB = 2**20


def bundle(tmp_path: Path, name: str = "model", **content: bytes) -> BundleAddress:
    folder = tmp_path / "origin" / name
    folder.mkdir(parents=True)
    for file, raw in (content or {"weights": b"w" * 1000}).items():
        (folder / file).write_bytes(raw)
    return BundleAddress.of(str(folder))


def sample(text: str, name: str, **labels: str) -> float | None:
    """One figure of a Prometheus page."""
    samples = (one for family in text_string_to_metric_families(text) for one in family.samples)
    return next((one.value for one in samples if one.name == name and one.labels == labels), None)


def test_a_bundle_of_a_real_store_is_fetched_reported_and_counted(home: Home, s3_store: S3Store) -> None:
    content = bytes(range(256)) * 20 * 1024
    s3_store.client.put_object(Bucket=s3_store.bucket, Key="llama/weights.bin", Body=content)
    s3_store.client.put_object(Bucket=s3_store.bucket, Key="llama/notes.txt", Body=b"no weights")
    keys = {
        "AWS_ACCESS_KEY_ID": s3_store.access_key_id,
        "AWS_SECRET_ACCESS_KEY": s3_store.secret_access_key,
        "AWS_ENDPOINT_URL": s3_store.endpoint_url,
        "AWS_DEFAULT_REGION": "us-east-1",
    }
    home.start("--limit", "1GiB", "--open-metrics", **keys)
    address = BundleAddress.of(f"s3://{s3_store.bucket}/llama", include=["*.bin"])
    told = home.ended(home.client.prefetch(address)["id"])
    assert (told["state"], told["bytes_done"], told["bytes_total"]) == ("done", len(content), len(content))
    (found,) = home.client.inventory()["bundles"]
    assert found["addresses"] == [str(address)] and found["whole"]
    ledger = home.ledger()
    eventually(lambda: ledger.inventories().get(NODE) and ledger.inventories()[NODE].bundles, "it is in the ledger")
    (reported,) = ledger.inventories()[NODE].bundles
    assert (reported.address, reported.bytes_resident, reported.digest) == (str(address), len(content), found["bundle"])
    ledger.close()
    metrics = httpx.get(f"{home.client.address.url}/metrics", timeout=SECONDS)
    assert metrics.status_code == 200, "this agent's metrics are open"
    assert sample(metrics.text, "dsec_cache_bytes", state="resident") == len(content)
    assert sample(metrics.text, "dsec_prefetches_total", state="done") == 1
    assert sample(metrics.text, "dsec_cache_wanted_bytes_total", source="origin") == 0, "no start has waited for it"
    assert home.client.health()["ok"]
    assert home.stop() == 0, home.log


def test_what_starts_wanted_is_counted_wherever_they_ran(home: Home, tmp_path: Path) -> None:
    cold, warm = bundle(tmp_path, "cold", weights=b"c" * 3000), bundle(tmp_path, "warm", weights=b"w" * 1000)
    home.start()
    home.ended(home.client.prefetch(warm)["id"])
    for address in (cold, warm):
        home.cache.acquire(address.uri, who="run 7").release()
    token = (home.path / "agent" / "token").read_text()
    answer = httpx.get(
        f"{home.client.address.url}/metrics", headers={"Authorization": f"Bearer {token}"}, timeout=SECONDS
    )
    assert sample(answer.text, "dsec_cache_wanted_bytes_total", source="origin") == 3000
    assert sample(answer.text, "dsec_cache_wanted_bytes_total", source="local") == 1000
    assert sample(answer.text, "dsec_cache_byte_hit_ratio", scope="local") == 0.25
    assert sample(answer.text, "dsec_cache_byte_hit_ratio", scope="total") == 0.25, "no cluster level, so nothing more"
    assert (sample(answer.text, "dsec_cache_stall_seconds_total") or 0) > 0
    assert sample(answer.text, "dsec_start_data_seconds_count", phase="verify") == 2
    starts = home.client.inventory()["starts"]
    assert [start["who"] for start in starts] == ["run 7", "run 7"]


def test_only_who_has_the_token_is_answered(home: Home, tmp_path: Path) -> None:
    home.start()
    token = home.path / "agent" / "token"
    assert stat.S_IMODE(token.stat().st_mode) == 0o600
    assert home.client.address.url.startswith("http://127.0.0.1:")
    for path in ("/health", "/inventory", "/metrics", "/prefetch"):
        for headers in ({}, {"Authorization": "Bearer wrong"}, {"Authorization": f"Basic {token.read_text()}"}):
            answer = httpx.get(home.client.address.url + path, headers=headers, timeout=SECONDS)
            assert answer.status_code == 401, path
            assert "token is missing or wrong" in answer.json()["error"]
    answer = httpx.post(home.client.address.url + "/prefetch", json={"uri": str(tmp_path)}, timeout=SECONDS)
    assert answer.status_code == 401
    for path in ("/alive", "/ready"):
        answer = httpx.get(home.client.address.url + path, timeout=SECONDS)
        assert answer.json() == {"ok": answer.status_code == 200}, "a kubelet has no token, and is told nothing else"
    token.write_text("something else")
    with pytest.raises(AgentError, match="token is missing or wrong"):
        home.client.health()


@pytest.mark.parametrize(
    ("body", "says"),
    [
        (b"{}", "uri: Field required"),
        (b"no json", "body: Invalid JSON"),
        (b'{"uri": "s3://b/x", "nodes": ["a"]}', "nodes: Extra inputs are not permitted"),
        (b'{"uri": "ftp://b/x"}', "no address of data"),
        (b'{"uri": "file:///data/../secret"}', "has '..' in it"),
        (b'{"uri": "' + b"x" * 70_000 + b'"}', "too long"),
    ],
)
def test_a_question_that_cannot_be_answered_is_refused_in_one_line(running: Home, body: bytes, says: str) -> None:
    token = (running.path / "agent" / "token").read_text()
    answer = httpx.post(
        running.client.address.url + "/prefetch",
        content=body,
        headers={"Authorization": f"Bearer {token}"},
        timeout=SECONDS,
    )
    assert 400 <= answer.status_code < 500
    assert says in answer.json()["error"] and "\n" not in answer.json()["error"]
    assert running.client.prefetches() == []


def test_a_prefetch_that_is_not_there_is_refused_in_one_line(running: Home) -> None:
    with pytest.raises(AgentError, match="there is no prefetch abc"):
        running.client.show("abc")
    with pytest.raises(AgentError, match="there is no prefetch abc"):
        running.client.cancel("abc")


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory):
    home = Home(tmp_path_factory.mktemp("agent")).start()
    yield home
    home.end()


@pytest.mark.parametrize(
    ("limit", "uri", "says"),
    [
        ("1KiB", None, "needs 5 KiB and the cache in"),
        ("1GiB", "/nowhere/at/all", "/nowhere/at/all does not exist"),
    ],
)
def test_a_prefetch_that_cannot_be_ends_with_one_line_and_leaves_nothing(
    home: Home, tmp_path: Path, limit: str, uri: str | None, says: str
) -> None:
    address = BundleAddress.of(uri) if uri else bundle(tmp_path, weights=b"w" * 5120)
    home.start("--limit", limit)
    told = home.ended(home.client.prefetch(address)["id"])
    assert told["state"] == "failed" and says in str(told["error"]) and "\n" not in str(told["error"])
    assert check(home.cache.store) == []
    assert not list(home.cache.store.layout.staging.iterdir())
    assert not list((home.path / "agent" / "prefetches").iterdir()), "it is not tried again by the next agent"


class Gate:
    """Lets an origin answer `free` questions, and the others only once it is opened."""

    def __init__(self, origin: MisbehavingOrigin, *, free: int) -> None:
        self.opened = threading.Event()
        self._left = free
        self._lock = threading.Lock()
        origin.tricks.append(self._hold)

    def _hold(self, exchange: Exchange) -> bool:
        with self._lock:
            self._left -= 1
            if self._left >= 0:
                return False
        self.opened.wait(SECONDS)
        return False


def test_an_agent_that_is_killed_goes_on_where_it_was(home: Home, origin_server: MisbehavingOrigin) -> None:
    content = bytes(range(256)) * (40 * MIB // 256)
    origin_server.files["weights.bin"] = content
    gate = Gate(origin_server, free=3)
    address = BundleAddress.of(f"{origin_server.url}/weights.bin")
    home.start()
    id = home.client.prefetch(address)["id"]
    staging = home.cache.store.layout.staging
    eventually(
        lambda: sum(arrived_bytes(each / "data") for each in staging.iterdir()) > 0,
        "something arrives, and is journalled",
    )
    home.kill()
    before = origin_server.bytes_asked("weights.bin")
    gate.opened.set()
    home.start()
    assert home.ended(id)["state"] == "done", "the next agent knows what was asked for"
    refetched = origin_server.bytes_asked("weights.bin") - before
    assert refetched < len(content), "what had arrived is not fetched again"
    with home.cache.acquire(address.uri) as lease:
        assert (lease.path / "weights.bin").read_bytes() == content
    assert check(home.cache.store) == []
    assert not list((home.path / "agent" / "prefetches").iterdir())


def test_a_prefetch_is_cancelled_while_it_is_under_way(home: Home, origin_server: MisbehavingOrigin) -> None:
    origin_server.files["weights.bin"] = b"w" * 20 * MIB
    gate = Gate(origin_server, free=0)
    home.start()
    id = home.client.prefetch(BundleAddress.of(f"{origin_server.url}/weights.bin"))["id"]
    eventually(lambda: home.client.show(id)["state"] == "fetching", "it begins")
    again = home.client.prefetch(BundleAddress.of(f"{origin_server.url}/weights.bin"))
    assert again["id"] == id, "the same address is one fetch"
    home.client.cancel(id)
    assert home.ended(id)["state"] == "cancelled"
    gate.opened.set()
    assert home.client.inventory()["bundles"] == []


def test_an_ask_in_the_ledger_is_carried_out_and_one_that_is_taken_back_is_stopped(
    home: Home, tmp_path: Path, origin_server: MisbehavingOrigin
) -> None:
    origin_server.files["weights.bin"] = b"w" * 20 * MIB
    gate = Gate(origin_server, free=0)
    address = bundle(tmp_path)
    home.start()
    ledger = home.ledger()
    ask = ledger.ask_prefetch([str(address)], [NODE], by="ann")
    eventually(lambda: ledger.prefetch_ask(ask)[0].state is PrefetchState.DONE, "it is fetched")
    (done,) = ledger.prefetch_ask(ask)
    assert (done.bytes_done, done.bytes_total) == (1000, 1000) and set(done.figures) == {"fetch", "verify"}
    slow = ledger.ask_prefetch([f"{origin_server.url}/weights.bin"], [NODE], by="ann")
    eventually(lambda: ledger.prefetch_ask(slow)[0].state is PrefetchState.FETCHING, "it begins")
    ledger.withdraw_ask(slow)
    eventually(
        lambda: any(one["state"] == "cancelled" for one in home.client.prefetches()), f"the fetch stops: {home.log}"
    )
    gate.opened.set()
    bad = ledger.ask_prefetch(["nonsense"], [NODE], by="ann")
    eventually(lambda: ledger.prefetch_ask(bad)[0].state is PrefetchState.FAILED, "it is refused")
    assert "is no address" in str(ledger.prefetch_ask(bad)[0].error)
    ledger.close()


def test_a_second_agent_of_a_home_says_who_runs_and_ends(home: Home) -> None:
    home.start()
    first = home.process
    try:
        home.start(until_it_answers=False)
        assert home.process is not None and home.process.wait(SECONDS) == 3
        assert "runs already at http://127.0.0.1:" in home.log.strip().splitlines()[-1]
    finally:
        home.process = first


def test_ctrl_c_ends_it_in_order(home: Home) -> None:
    home.start()
    assert home.stop(signal.SIGINT) == 0
    assert "Traceback" not in home.log


def test_an_agent_without_a_ledger_serves_and_says_what_is_missing(home: Home, tmp_path: Path) -> None:
    home.start(DSEC_LEDGER_URL="postgresql://nobody@127.0.0.1:1/none")
    told = home.ended(home.client.prefetch(bundle(tmp_path))["id"])
    assert told["state"] == "done"
    eventually(lambda: not home.client.health()["ok"], "it says so")
    assert "127.0.0.1" in json.dumps(home.client.health()["troubles"])
    asked = [httpx.get(f"{home.client.address.url}{path}", timeout=SECONDS) for path in ("/ready", "/alive")]
    assert [answer.status_code for answer in asked] == [503, 200], "no restart would cure that"


def test_a_directory_that_is_no_cache_is_refused_at_the_start(home: Home, tmp_path: Path) -> None:
    other = tmp_path / "photos"
    other.mkdir()
    (other / "cat.jpg").write_bytes(b"meow")
    home.start("--directory", str(other), until_it_answers=False)
    assert home.process is not None and home.process.wait(SECONDS) == 2
    assert home.log.strip() == f"dsec: directory: {other} has other things in it (cat.jpg); name an empty one"
    assert [path.name for path in other.iterdir()] == ["cat.jpg"]
