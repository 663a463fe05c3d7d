"""An incident file is the whole pool at one instant: it plans like the pool did, and tells nobody's secrets."""

import json
from pathlib import Path

import pytest

from dsec_blocks.ledger import CachedBundle, Fence, Ledger
from dsec_blocks.model.devices import Device, Node
from dsec_blocks.model.errors import InvalidRequest
from dsec_blocks.model.gangs import Gang, GangState, MemberPlacement, Placement
from dsec_blocks.model.requests import GangRequest
from dsec_blocks.model.teams import Team
from dsec_deployments.foresight import present
from dsec_workers.lifecycle.incidents import bare_address, bare_addresses, capture, load
from dsec_workers.scheduling import plan
from tests.fixtures.clock import ManualClock
from tests.fixtures.ledgers import new_ledger

POOL = "gpus"


def gang(run_id: str, *, team: str = "ml", devices: int = 2, **request: object) -> Gang:
    return Gang(
        run_id=run_id, name=f"run {run_id}", pool=POOL, team=team, state=GangState.WAITING, submitted_at=10.0,
        eligible_at=10.0, request=GangRequest(devices_per_node=devices, **request), created_by="ann",
        tags=("user:ann",),
    )  # fmt: skip


@pytest.fixture
def ledger(tmp_path: Path):
    clock = ManualClock()
    ledger = new_ledger(tmp_path / "ledger.db", clock=clock)
    fence = ledger.take_lease(POOL, "leader", seen=None)
    assert fence is not None
    ledger.put_nodes(
        fence,
        [
            Node(
                name=name,
                devices=tuple(
                    Device(uuid=f"{name}/{i}", node=name, index=i, model="H100", memory_bytes=2**36) for i in range(2)
                ),
                topology=("z", "r0"),
            )
            for name in ("n1", "n2")
        ],
    )
    ledger.put_team(POOL, Team(name="org", nominal_devices=0, borrow_devices=2))
    ledger.put_team(POOL, Team(name="ml", nominal_devices=2, parent="org", lend_devices=1))
    secret = {"env": {"TOKEN": "hunter2"}, "inputs": ("https://me:hunter2@host/models/x?sig=hunter2",)}
    ledger.enqueue(fence, [gang("a", **secret), gang("b"), gang("c", priority=5)])
    ledger.admit(fence, "a", Placement(members=(MemberPlacement(node="n1", devices=("n1/0", "n1/1")),)), expires_at=2e9)
    ledger.wish(POOL, "freeze", None, {"scope": "node", "name": "n2"}, by="ops", why="fan")
    ledger.wish(POOL, "override", "b", {"admit": False}, by="ops", why="wait for data")
    ledger.put_policy(POOL, {"w_age": 4.0, "class_penalty_seconds": {"interactive": 60.0}}, by="ops", why="trial")
    yield ledger
    ledger.close()


def test_a_captured_pool_plans_like_the_pool_itself(ledger: Ledger) -> None:
    document = json.loads(json.dumps(capture(ledger, POOL, now=1_000_100.0, by="ops", why="odd")))
    incident = load(document, file="incident.json")
    assert (incident.pool, incident.now, incident.policy.version, incident.policy.w_age) == (POOL, 1_000_100.0, "2", 4)
    assert incident.teams["ml"] == ledger.teams(POOL)["ml"]
    assert incident.nodes == ledger.nodes(POOL)
    assert sorted(queued.run_id for queued in incident.queue) == ["b", "c"]
    assert set(incident.snapshot.slots) == {"a"}
    result = plan(incident.snapshot, incident.queue, incident.policy, incident.now)
    assert result.admits == ()
    told = {hold.run_id: hold.reason.text for hold in result.holds}
    assert told["b"] == "held back by ops: wait for data"
    assert "admission to node n2 is frozen: frozen by ops: fan" in told["c"]


def test_a_captured_pool_tells_no_secret(ledger: Ledger) -> None:
    text = json.dumps(capture(ledger, POOL, now=1_000_100.0, by="ops"))
    assert "hunter2" not in text
    assert '"TOKEN": "***"' in text
    assert "https://host/models/x" in text


def test_a_captured_pool_knows_where_the_data_is_without_its_secrets(ledger: Ledger) -> None:
    lease = ledger.lease(POOL)
    assert lease is not None
    fence = Fence(POOL, lease.holder, lease.token)
    signed = ["https://me:hunter2@host/w?sig=hunter2", "https://me:hunter2@host/w?sig=hunter3", "s3://b/x"]
    ledger.enqueue(fence, [gang("d", devices=1, inputs=(signed[1], signed[2]))])
    for node, address in (("n1", signed[0]), ("n2", signed[1]), ("elsewhere", signed[1])):
        held = [CachedBundle(address=address, digest="d", bytes_total=10**11, bytes_resident=10**11)]
        ledger.report_inventory(node, at=1_000_099.0, bandwidth_bytes_per_s=1e8, bundles=held)
    document = json.loads(json.dumps(capture(ledger, POOL, now=1_000_100.0, by="ops")))
    assert "hunter" not in json.dumps(document)
    [mine] = [queued for queued in load(document).queue if queued.run_id == "d"]
    assert mine.seconds_saved == (("n2", 1000.0),)
    [same] = [queued for queued in present(ledger, POOL, now=1_000_100.0).waiting if queued.run_id == "d"]
    assert same.seconds_saved == mine.seconds_saved


def test_a_file_of_the_first_version_knows_nothing_of_data(ledger: Ledger) -> None:
    document = {**capture(ledger, POOL, now=1_000_100.0, by="ops"), "version": 1}
    del document["inventories"]
    assert all(queued.seconds_saved == () for queued in load(document).queue)


def test_addresses_that_differ_only_in_what_is_hidden_stay_different() -> None:
    named = bare_addresses(["https://h/a?b=1", "https://h/a?b=2", "https://h/a/?b=1", "s3://b/x/", "s3://b/x", "odd"])
    assert named["https://h/a?b=1"] != named["https://h/a?b=2"]
    assert named["s3://b/x/"] == named["s3://b/x"] == "s3://b/x"
    assert named["odd"] == "odd"
    assert {name.partition("?")[0] for name in named.values()} == {"https://h/a", "https://h/a/", "s3://b/x", "odd"}


@pytest.mark.parametrize(
    ("uri", "bare"),
    [
        ("s3://bucket/key", "s3://bucket/key"),
        ("https://u:p@host:80/a?token=1#x", "https://host:80/a"),
        ("/data/model", "/data/model"),
    ],
)
def test_an_address_keeps_only_where_it_leads(uri: str, bare: str) -> None:
    assert bare_address(uri) == bare


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"format": "x"}, r"f\.json: this is no incident file"),
        ({"version": 5}, r"f\.json: version 5, but this dsec reads up to 4; upgrade dsec"),
        ({"gangs": [{"run_id": 3}]}, r"f\.json: gangs\.0\.run_id: Input should be a valid string"),
        ({"policy": {"version": "9", "values": {"w_agee": 1}}}, r"f\.json: policy: w_agee: 1: .* did you mean w_age"),
        ({"teams": None}, r"f\.json: teams\.: Input should be a valid list"),
    ],
)
def test_a_file_that_cannot_be_read_says_what_is_wrong(ledger: Ledger, change: dict, message: str) -> None:
    document = capture(ledger, POOL, now=1.0, by="ops")
    with pytest.raises(InvalidRequest, match=message):
        load({**document, **change}, file="f.json")


def test_a_file_that_lacks_a_part_names_it(ledger: Ledger) -> None:
    document = capture(ledger, POOL, now=1.0, by="ops")
    del document["shadows"]
    with pytest.raises(InvalidRequest, match="'shadows' is missing"):
        load(document, file="f.json")


def test_a_captured_pool_knows_where_gangs_have_failed(ledger: Ledger) -> None:
    fence = Fence(POOL, "leader", 1)
    ledger.leave(fence, "a", 1, {"kind": "lost"})
    ledger.requeue(fence, "a", 1, evicted=False, infrastructure=True)
    now = ManualClock().now()
    document = json.loads(json.dumps(capture(ledger, POOL, now=now, by="ops")))
    assert load(document).snapshot.failures == present(ledger, POOL, now=now).snapshot.failures == {"n1": 1.0}
    assert load({**document, "version": 3}).snapshot.failures == {}


def test_a_captured_pool_expects_what_the_pool_expects(ledger: Ledger) -> None:
    document = json.loads(json.dumps(capture(ledger, POOL, now=1_000_100.0, by="ops")))
    incident, there = load(document), present(ledger, POOL, now=1_000_100.0)
    assert incident.snapshot.seen == there.snapshot.seen
    assert {shape.devices: round(weight, 2) for shape, weight in there.snapshot.seen.items()} == {2: 3.0}
