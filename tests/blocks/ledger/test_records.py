"""Teams, nodes, shadows, decisions and wishes are kept as they were written."""

from collections.abc import Callable
from dataclasses import replace

import pytest

from dsec_blocks.ledger import Decision, Fence, Ledger
from dsec_blocks.model.devices import Device, Health, Node
from dsec_blocks.model.errors import Fenced, LedgerError, UnknownTeam
from dsec_blocks.model.teams import Team
from tests.blocks.ledger.gangs import POOL
from tests.fixtures.clock import ManualClock

DEVICE = Device(uuid="GPU-1", node="n1", index=0, model="H100", memory_bytes=80 << 30, nvlink_domain="d", numa_node=1)
NODES = (
    Node(
        name="n1",
        devices=(DEVICE, replace(DEVICE, uuid="GPU-2", index=1, health=Health.FROZEN)),
        topology=("z", "r"),
        cpus=63.5,
        memory_bytes=1 << 40,
    ),
    Node(name="n2", labels={"zone": "a"}, schedulable=False),
)


def test_a_pool_always_has_the_default_team(ledger: Ledger) -> None:
    assert ledger.teams(POOL) == {"default": Team(name="default", nominal_devices=0)}


def test_the_default_team_is_entitled_to_the_devices_that_no_other_team_is(ledger: Ledger, fence: Fence) -> None:
    ledger.put_nodes(fence, NODES)
    assert ledger.teams(POOL)["default"].nominal_devices == 2
    ledger.put_team(POOL, Team(name="ml", nominal_devices=1))
    assert ledger.teams(POOL)["default"].nominal_devices == 1
    ledger.put_team(POOL, Team(name="web", nominal_devices=9))
    assert ledger.teams(POOL)["default"].nominal_devices == 0


def test_teams_are_added_replaced_and_removed(ledger: Ledger) -> None:
    ml = Team(name="ml", nominal_devices=8, borrow_devices=4, weight=2.0, highest_priority=50)
    ledger.put_team(POOL, replace(ml, weight=1.0))
    ledger.put_team(POOL, ml)
    ledger.put_team("other", Team(name="web", nominal_devices=1))
    assert set(ledger.teams(POOL)) == {"default", "ml"}
    assert ledger.teams(POOL)["ml"] == ml

    ledger.put_team(POOL, Team(name="default", nominal_devices=3))
    assert ledger.teams(POOL)["default"].nominal_devices == 3

    ledger.remove_team(POOL, "ml")
    assert set(ledger.teams(POOL)) == {"default"}


def test_removing_an_unknown_team_names_the_teams_there_are(ledger: Ledger) -> None:
    ledger.put_team(POOL, Team(name="ml", nominal_devices=8))

    with pytest.raises(UnknownTeam, match="team 'mll' is not in pool pool; its teams are default, ml"):
        ledger.remove_team(POOL, "mll")


@pytest.mark.parametrize(
    ("team", "message"),
    [
        (Team(name=" ", nominal_devices=1), "a team needs a name"),
        (Team(name="t", nominal_devices=-1), "nominal_devices is -1"),
        (Team(name="t", nominal_devices=1, borrow_devices=-2), "borrow_devices is -2"),
        (Team(name="t", nominal_devices=1, weight=0.0), "weight is 0.0"),
        (Team(name="t", nominal_devices=1, weight=float("nan")), "weight is nan"),
        (Team(name="t", nominal_devices=1, highest_priority=-5), "highest_priority is -5"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_team_that_means_nothing_is_refused(ledger: Ledger, team: Team, message: str) -> None:
    with pytest.raises(LedgerError, match=message):
        ledger.put_team(POOL, team)


def test_nodes_are_replaced_as_a_whole(ledger: Ledger, fence: Fence) -> None:
    ledger.put_nodes(fence, NODES)
    assert ledger.nodes(POOL) == NODES

    ledger.put_nodes(fence._replace(token=99), NODES)  # no news: not even the fence is looked at
    ledger.put_nodes(fence, NODES[:1])
    assert ledger.nodes(POOL) == NODES[:1]
    assert ledger.nodes("other") == ()
    ledger.put_nodes(fence, ())
    assert ledger.nodes(POOL) == ()


def test_of_nodes_only_what_changed_is_written(
    ledger: Ledger, fence: Fence, statements_of: Callable[[Callable[[], None]], list[str]]
) -> None:
    many = [*NODES, *(replace(NODES[1], name=f"m{n}") for n in range(20))]
    ledger.put_nodes(fence, many)
    assert _writes(statements_of(lambda: ledger.put_nodes(fence, list(reversed(many))))) == []

    frozen = replace(NODES[0], devices=(replace(DEVICE, health=Health.FROZEN), NODES[0].devices[1]))
    changed = [frozen, replace(NODES[1], schedulable=True), *many[2:]]
    written = statements_of(lambda: ledger.put_nodes(fence, changed))
    assert [text.split()[2] for text in _writes(written)] == ["nodes", "devices"]
    assert {node.name: node for node in ledger.nodes(POOL)} == {node.name: node for node in changed}


def test_a_leader_without_news_reads_all_devices_back_every_five_seconds(
    ledger: Ledger, fence: Fence, statements_of: Callable[[Callable[[], None]], list[str]]
) -> None:
    ledger.put_nodes(fence, NODES)
    asked = statements_of(lambda: ledger.put_nodes(fence, [replace(node) for node in NODES]))
    assert [text.split("FROM ")[1].split()[0] for text in asked if "FROM" in text] == ["leases"]
    ledger.put_nodes(fence, NODES[:1])
    assert ledger.nodes(POOL) == NODES[:1]


def test_what_an_outer_transaction_undid_is_written_again(ledger: Ledger, fence: Fence) -> None:
    with pytest.raises(ZeroDivisionError), ledger.transaction(at="test.outer", fence=fence):
        ledger.put_nodes(fence, NODES)
        raise ZeroDivisionError
    assert ledger.nodes(POOL) == ()
    ledger.put_nodes(fence, NODES)
    assert ledger.nodes(POOL) == NODES


def test_a_new_leader_sees_whole_cards_where_there_are_slices(ledger: Ledger, fence: Fence, ledger_url: str) -> None:
    slices = tuple(
        replace(DEVICE, uuid=f"MIG-{i}", index=i + 1, memory_bytes=40 << 30, slice_of="GPU-1", profile="3g.40gb")
        for i in range(2)
    )
    cut = (replace(NODES[0], devices=(DEVICE, *slices)),)
    ledger.put_nodes(fence, cut)
    others = Ledger.open(ledger_url, clock=ManualClock())
    assert others.nodes(POOL) == cut
    assert others.teams(POOL)["default"].nominal_devices == 2, "nobody gets the card that is cut"
    others.close()


def test_nodes_are_right_after_another_leader_wrote_them(ledger: Ledger, fence: Fence, ledger_url: str) -> None:
    ledger.put_nodes(fence, NODES)
    ledger.resign(fence)
    successors = Ledger.open(ledger_url, clock=ManualClock())
    successor = successors.take_lease(POOL, "successor", seen=None)
    assert successor is not None
    successors.put_nodes(successor, [replace(NODES[1], labels={})])
    successors.resign(successor)
    successors.close()
    again = ledger.take_lease(POOL, "leader", seen=None)
    assert again is not None
    with pytest.raises(Fenced):
        ledger.put_nodes(fence, NODES)
    ledger.put_nodes(again, NODES)
    assert ledger.nodes(POOL) == NODES


def test_a_device_may_move_to_another_node(ledger: Ledger, fence: Fence) -> None:
    ledger.put_nodes(fence, NODES)
    moved = (replace(NODES[1], devices=(replace(DEVICE, node="n2"),)),)
    ledger.put_nodes(fence, moved)
    assert ledger.nodes(POOL) == moved


def test_a_device_on_two_nodes_is_refused_by_name(ledger: Ledger, fence: Fence) -> None:
    twice = (NODES[0], replace(NODES[1], devices=(replace(DEVICE, node="n2"),)))
    with pytest.raises(LedgerError, match="device GPU-1 is on node n1 and on node n2: a device has one place"):
        ledger.put_nodes(fence, twice)
    assert ledger.nodes(POOL) == ()


def _writes(statements: list[str]) -> list[str]:
    return [text for text in statements if text.startswith(("INSERT", "DELETE"))]


def test_shadows_are_replaced_as_a_whole(ledger: Ledger, fence: Fence) -> None:
    rows = [{"resource_pool": "H100", "run_id": "a", "start": 5.0}, {"resource_pool": "A100", "run_id": "b"}]
    ledger.put_shadows(fence, rows)
    assert ledger.shadows(POOL) == [rows[1], rows[0]]

    ledger.put_shadows(fence, [{**rows[0], "start": 6.0}])
    assert ledger.shadows(POOL) == [{**rows[0], "start": 6.0}]
    ledger.put_shadows(fence, [])
    assert ledger.shadows(POOL) == []


def test_decisions_are_read_oldest_first_and_cannot_be_changed(ledger: Ledger, fence: Fence) -> None:
    log = [
        Decision(at=n, pool=POOL, run_id=f"r{n % 2}", stage="plan", outcome="hold", why=f"{n}", detail={"n": n})
        for n in range(5)
    ]
    ledger.decide(fence, log[:2])
    ledger.decide(fence, [])
    ledger.decide(fence, log[2:])

    assert ledger.decisions(POOL) == log
    assert ledger.decisions(POOL, limit=2) == log[3:]
    assert ledger.decisions(POOL, run_id="r1") == [log[1], log[3]]
    assert ledger.decisions("other") == []
    assert not [name for name in dir(ledger) if "decision" in name and name not in ("decisions",)]


def test_a_wish_stays_open_until_the_leader_answers_it(ledger: Ledger, fence: Fence, clock: ManualClock) -> None:
    first = ledger.wish(POOL, "evict", "a", {"grace": 5}, by="ann", why="maintenance")
    second = ledger.wish(POOL, "drain", None, {"node": "n1"}, by="ops", why="fan")
    wish = ledger.wishes(POOL)[0]
    assert (wish.id, wish.kind, wish.run_id, wish.args) == (first, "evict", "a", {"grace": 5})
    assert (wish.by, wish.why, wish.at) == ("ann", "maintenance", clock.now())
    assert ledger.wish_outcome(first) is None

    ledger.fulfil(fence, first, "evicted")
    ledger.fulfil(fence, first, "a second answer")

    assert [wish.id for wish in ledger.wishes(POOL)] == [second]
    assert ledger.wish_outcome(first) == "evicted"
    assert ledger.wishes("other") == []


def test_an_unknown_kind_of_wish_is_refused(ledger: Ledger) -> None:
    with pytest.raises(LedgerError, match="a wish is one of evict, cancel, prioritize, drain"):
        ledger.wish(POOL, "explode", "a", {}, by="me", why="")
