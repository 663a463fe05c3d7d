"""What open wishes mean, and who has to be asked to leave for them, and when."""

from dsec_blocks.ledger import Wish
from dsec_blocks.model.devices import Device, Node
from dsec_blocks.model.gangs import Gang, GangState, MemberPlacement, Placement
from dsec_blocks.model.requests import GangRequest, Kind
from dsec_workers.lifecycle.orders import choose_devices, must_leave, standing
from dsec_workers.scheduling import Policy

NOW = 10_000.0
POLICY = Policy(checkpoint_seconds=10.0)


def node(name: str, gpus: int = 4, *, model: str = "H100", schedulable: bool = True) -> Node:
    devices = (Device(uuid=f"{name}/{i}", node=name, index=i, model=model, memory_bytes=1) for i in range(gpus))
    return Node(name=name, devices=tuple(devices), schedulable=schedulable)


NODES = [node("n1"), node("n2")]


def wish(kind: str, *, id: int = 1, run_id: str | None = None, **args: object) -> Wish:
    return Wish(id=id, pool="p", kind=kind, run_id=run_id, args=args, by="ops", why="fan", at=0.0)


def gang(
    *devices: str, grace: float = 30.0, state: GangState = GangState.RUNNING, launched: float = NOW - 100, **more
) -> Gang:
    fields = {name: more.pop(name) for name in ("team", "tags", "checkpoint_seconds") if name in more}
    return Gang(
        run_id=more.pop("run_id", "g"), name="g", pool="p", state=state, submitted_at=0.0, eligible_at=0.0,
        request=GangRequest(devices_per_node=len(devices), grace_seconds=grace, **more),
        placement=Placement(members=(MemberPlacement(node=devices[0].partition("/")[0], devices=devices),)),
        launched_at=launched, **{"team": "a", **fields},
    )  # fmt: skip


def leaving(found: dict[str, list[str]]) -> list[str]:
    return sorted(run_id for run_ids in found.values() for run_id in run_ids)


def test_freezes_close_the_pool_a_team_or_a_node_each_with_who_and_why() -> None:
    orders = standing(
        [wish("freeze", scope="all"), wish("freeze", scope="team", name="a"), wish("freeze", scope="node", name="n1")],
        NODES,
        NOW,
    )
    assert orders.frozen.everything == "frozen by ops: fan"
    assert orders.frozen.teams == {"a": "frozen by ops: fan"} and orders.frozen.nodes == {"n1": "frozen by ops: fan"}
    assert orders and not standing([], NODES, NOW)


def test_a_drain_without_a_deadline_closes_the_node_and_everybody_on_it_leaves_now() -> None:
    orders = standing([wish("drain", node="n1")], NODES, NOW)
    assert orders.frozen.nodes == {"n1": "n1 is being drained by ops: fan"} and orders.withheld == ()
    gangs = [gang("n1/0"), gang("n1/1", run_id="fixed", preemptible=False), gang("n2/0", run_id="other")]
    assert must_leave(orders, gangs, POLICY, NOW) == {"Node n1 is being drained: fan": ["g", "fixed"]}


def test_before_its_deadline_a_drain_withholds_the_node_from_what_would_not_end_in_time() -> None:
    orders = standing([wish("drain", node="n1", deadline=NOW + 3600)], NODES, NOW)
    [withheld] = orders.withheld
    assert withheld.devices == {f"n1/{i}" for i in range(4)} and withheld.start == NOW + 3600
    assert not withheld.conditional and orders.frozen.nodes == {}
    assert standing([wish("drain", node="n1", deadline=NOW)], NODES, NOW).frozen.nodes


def test_gangs_are_asked_to_leave_a_checkpoint_and_their_grace_before_the_deadline() -> None:
    orders = standing([wish("drain", node="n1", deadline=NOW + 100)], NODES, NOW)
    asked_at = NOW + 100 - 10 - 30
    for now, leaves in ((asked_at - 0.1, []), (asked_at, ["g"])):
        assert leaving(must_leave(orders, [gang("n1/0")], POLICY, now)) == leaves
    measured = gang("n1/0", checkpoint_seconds=50.0)
    assert leaving(must_leave(orders, [measured], POLICY, NOW + 20)) == ["g"]


def test_a_gang_that_ends_by_contract_before_the_deadline_is_left_alone() -> None:
    orders = standing([wish("drain", node="n1", deadline=NOW + 100)], NODES, NOW)
    ends_in_time = gang("n1/0", max_runtime_seconds=150.0)
    ends_late = gang("n1/1", run_id="late", max_runtime_seconds=250.0)
    assert leaving(must_leave(orders, [ends_in_time, ends_late], POLICY, NOW + 99)) == ["late"]


def reservation(**args: object) -> Wish:
    fields = {"devices": ["n1/0", "n1/1"], "start": NOW + 100, "end": NOW + 200, "teams": ["vip"], "tags": ["demo"]}
    return wish("reserve", id=7, **{**fields, **args})


def test_a_window_asks_only_those_to_leave_that_may_be_evicted_and_are_not_its_own() -> None:
    orders = standing([reservation()], NODES, NOW)
    gangs = [
        gang("n1/0", run_id="evictable"),
        gang("n1/1", run_id="fixed", preemptible=False),
        gang("n1/1", run_id="serves", kind=Kind.INFERENCE),
        gang("n1/0", run_id="vip", team="vip"),
        gang("n1/0", run_id="tagged", tags=("demo",)),
        gang("n1/2", run_id="beside"),
        gang("n1/0", run_id="leaving", state=GangState.EVICTING),
    ]
    found = must_leave(orders, gangs, POLICY, NOW + 60)
    assert found == {"The devices are reserved for team vip and runs tagged demo by ops: fan": ["evictable"]}
    assert must_leave(orders, gangs, POLICY, NOW + 59) == {}


def test_a_window_that_is_over_is_reported_and_holds_nothing() -> None:
    orders = standing([reservation(end=NOW)], NODES, NOW)
    assert orders.over == ((7, "over"),) and orders.windows == ()


def test_the_last_word_on_a_run_counts() -> None:
    words = [wish("override", id=1, run_id="g", admit=True), wish("override", id=2, run_id="g", admit=False)]
    assert standing(words, NODES, NOW).overrides["g"].admit is False and standing(words, NODES, NOW).to_admit == {}
    assert standing(words[:1], NODES, NOW).to_admit == {"g": 1}


def test_devices_for_a_window_are_whole_idle_nodes_first() -> None:
    nodes = [node("busy"), node("idle"), node("small", 2), node("closed", schedulable=False), node("old", model="A100")]
    assert choose_devices(nodes, 4, model="H100", taken=(), busy=["busy/0"]) == [f"idle/{i}" for i in range(4)]
    chosen = choose_devices(nodes, 7, model="H100", taken=["idle/0"], busy=["busy/0"])
    assert chosen == ["idle/1", "idle/2", "idle/3", "small/0", "small/1", "busy/1", "busy/2"]
    assert len(choose_devices(nodes, 99, model="A100", taken=(), busy=())) == 4
