"""A pool's numbers agree with its rows, and what each use of the database took is told."""

import pytest

from dsec_blocks.ledger import DeviceCount, Fence, Ledger
from dsec_blocks.model.devices import Device, Health, Node
from dsec_blocks.model.errors import Fenced, LedgerError
from tests.blocks.ledger.gangs import POOL, admitted, running, waiting
from tests.fixtures.clock import ManualClock


def node(name: str, model: str, *, schedulable: bool = True, frozen: int | None = None) -> Node:
    devices = [
        Device(
            uuid=f"{name}/{index}",
            node=name,
            index=index,
            model=model,
            memory_bytes=1,
            health=Health.FROZEN if index == frozen else Health.HEALTHY,
        )
        for index in range(4)
    ]
    return Node(name=name, devices=tuple(devices), schedulable=schedulable)


@pytest.fixture
def pool(ledger: Ledger, fence: Fence) -> Ledger:
    ledger.put_nodes(fence, [node("n1", "H100"), node("n2", "H100", frozen=3), node("n3", "A100", schedulable=False)])
    running(ledger, fence, "runs", "n1/0", "n1/1")
    running(ledger, fence, "closed", "n3/0")
    admitted(ledger, fence, "urgent", "n1/0", "n1/1", "n1/2", victims=("runs",))
    return ledger


def test_devices_are_counted_by_model_and_health_with_who_holds_and_who_is_promised_them(pool: Ledger) -> None:
    found = {(each.model, each.health): each for each in pool.figures(POOL).devices}
    assert found == {
        ("H100", "healthy"): DeviceCount(model="H100", health="healthy", total=7, held=3, promised=2),
        ("H100", "frozen"): DeviceCount(model="H100", health="frozen", total=1, held=0, promised=0),
        ("A100", "closed"): DeviceCount(model="A100", health="closed", total=4, held=1, promised=0),
    }
    assert found["H100", "healthy"].free == 4
    assert found["A100", "closed"].free == 0, "nobody gets devices of a closed node"
    assert pool.figures(POOL).held_by_team == {("default", "H100"): 3, ("default", "A100"): 1}
    assert pool.figures("other").devices == []


def test_usage_is_told_by_team_and_model(pool: Ledger, fence: Fence, clock: ManualClock) -> None:
    clock.advance(10.0)
    pool.accrue(fence, clock.now())
    assert pool.figures(POOL).device_seconds == {("default", "H100"): 30.0, ("default", "A100"): 10.0}


@pytest.mark.parametrize(
    "damage",
    [
        "UPDATE reservations SET attempt = 2 WHERE device = 'n1/0' AND turn = 0",
        "UPDATE reservations SET run_id = 'waiting' WHERE device = 'n1/0' AND turn = 0",
    ],
)
def test_a_reservation_of_nobody_is_a_leak_and_no_other_is(pool: Ledger, fence: Fence, statements, damage: str) -> None:
    pool.enqueue(fence, [waiting("waiting")])
    assert pool.figures(POOL).leaked == 0
    statements(damage)
    assert pool.figures(POOL).leaked == 1
    assert any(violation.rule == "reservation-has-a-holder" for violation in pool.check(POOL)), "check says so too"


def test_agents_of_the_pool_s_nodes_are_told_with_their_last_word(pool: Ledger) -> None:
    for name, at in [("n1", 50.0), ("elsewhere", 60.0)]:
        pool.report_inventory(name, at=at, bandwidth_bytes_per_s=None, bundles=[])
    assert pool.figures(POOL).reported_at == {"n1": 50.0}


def test_who_observes_is_told_each_use_once_and_only_a_failing_database_is_a_failure(
    ledger: Ledger, fence: Fence, clock: ManualClock
) -> None:
    told: list[tuple[str, float, bool]] = []
    ledger.observe = lambda *use: told.append(use)
    ledger.gangs(POOL)
    with ledger.transaction(at="test.figures"):
        clock.advance(2.0)
        ledger.gangs(POOL)
    with pytest.raises(Fenced):
        ledger.beat(Fence(POOL, "another", 9))
    with pytest.raises(LedgerError), ledger.transaction(at="test.figures") as connection:
        connection.exec_driver_sql("SELECT nothing FROM nowhere")
    assert told == [("read", 0.0, False), ("write", 2.0, False), ("write", 0.0, False), ("write", 0.0, True)]
