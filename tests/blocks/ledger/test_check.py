"""`check` finds every kind of damage, each planted past the ledger's own methods, and cries over nothing else."""

import pytest

from dsec_blocks.ledger import Fence, Ledger
from tests.blocks.ledger.gangs import POOL, admitted, launching, running, waiting
from tests.fixtures.ledgers import new_ledger

UNKEYED = (
    "ALTER TABLE reservations RENAME TO keyed",
    "CREATE TABLE reservations AS SELECT * FROM keyed",
)
"""The reservations without their key, as a database with broken constraints would have them."""


def _rules(ledger: Ledger, **how) -> set[str]:
    return {violation.rule for violation in ledger.check(**how)}


@pytest.fixture
def busy(ledger: Ledger, fence: Fence) -> Ledger:
    """A gang in each state, and none of it wrong."""
    ledger.enqueue(fence, [waiting("waiting")])
    admitted(ledger, fence, "reserved", "n1/0", "n1/1", inputs=("s3://b/x",))
    launching(ledger, fence, "launching", "n1/2")
    running(ledger, fence, "running", "n2/0", "n2/1")
    running(ledger, fence, "victim", "n3/0")
    admitted(ledger, fence, "urgent", "n3/0", "n3/1", victims=("victim",))
    running(ledger, fence, "gone", "n4/0")
    ledger.leave(fence, "gone", 1, {})
    return ledger


def test_a_busy_ledger_is_sound(busy: Ledger) -> None:
    assert busy.check() == []
    assert busy.check(POOL) == []
    observed = {("launching", 1), ("running", 1), ("victim", 1), ("gone", 1)}
    assert busy.check(POOL, observed=observed) == []
    assert busy.check(observed=observed - {("launching", 1), ("gone", 1)}) == [], "those may be there, or not (yet)"


@pytest.mark.parametrize(
    ("rule", "damage"),
    [
        ("gang-whole-or-absent", "DELETE FROM reservations WHERE device = 'n1/0'"),
        ("gang-whole-or-absent", "DELETE FROM reservations WHERE run_id = 'reserved'"),
        ("gang-whole-or-absent", "DELETE FROM reservations WHERE device = 'n2/1'"),
        ("gang-whole-or-absent", "INSERT INTO reservations SELECT 'n9/0', 0, run_id, attempt, pool, node, state, "
         "charged_until FROM reservations WHERE device = 'n2/0'"),
        ("reservation-has-a-holder", "UPDATE reservations SET attempt = 2 WHERE device = 'n2/0'"),
        ("reservation-has-a-holder", "UPDATE reservations SET run_id = 'waiting' WHERE device = 'n2/0'"),
        ("reservation-has-a-holder", "UPDATE gangs SET state = 'leaving' WHERE run_id = 'running'"),
        ("promise-behind-an-eviction", "DELETE FROM reservations WHERE run_id = 'victim'"),
        ("promise-behind-an-eviction", "UPDATE gangs SET state = 'running' WHERE run_id = 'victim'"),
        ("evicting-has-a-reason", "DELETE FROM evictions"),
        ("evicting-has-a-reason", "UPDATE gangs SET state = 'evicting' WHERE run_id = 'running'"),
        ("evicting-has-a-reason", "UPDATE gangs SET state = 'running' WHERE run_id = 'victim'"),
        ("prefetch-follows-its-gang", "UPDATE prefetches SET attempt = 7"),
        ("prefetch-follows-its-gang", "UPDATE prefetches SET run_id = 'waiting'"),
        ("placement-while-holding", "UPDATE gangs SET placement = NULL WHERE run_id = 'running'"),
        ("placement-while-holding", "UPDATE gangs SET placement = '[]' WHERE run_id = 'waiting'"),
        ("device-held-once", "INSERT INTO reservations SELECT device, 1, run_id, attempt, pool, node, state, NULL "
         "FROM reservations WHERE device = 'n2/0'"),
    ],
)  # fmt: skip
def test_planted_damage_is_found(busy: Ledger, statements, rule: str, damage: str) -> None:
    statements(damage)

    found = busy.check()

    assert rule in {violation.rule for violation in found}
    assert all(violation.object and violation.text for violation in found)
    assert busy.check("another pool") == []


def test_two_gangs_on_one_device_are_found_even_if_the_key_is_gone(busy: Ledger, statements) -> None:
    for statement in UNKEYED:
        statements(statement)
    statements("INSERT INTO reservations SELECT 'n2/0', turn, run_id, attempt, pool, node, state, charged_until "
               "FROM reservations WHERE device = 'n1/2'")  # fmt: skip

    assert "device-held-once" in _rules(busy)


def test_reservations_left_when_nothing_runs_are_found(ledger: Ledger, fence: Fence, statements) -> None:
    running(ledger, fence, "a", "n1/0")
    statements("UPDATE gangs SET state = 'ended' WHERE run_id = 'a'")

    assert "zero-when-idle" in _rules(ledger)


@pytest.mark.parametrize(
    "observed",
    [
        {("running", 1)},
        {("running", 1), ("victim", 1), ("stranger", 1)},
        {("running", 2), ("victim", 1)},
        {("running", 1), ("victim", 1), ("waiting", 0)},
        {("running", 1), ("victim", 1), ("reserved", 1)},
    ],
    ids=["a victim is gone", "a stranger runs", "another attempt runs", "a waiting one runs", "a reserved one runs"],
)
def test_a_cluster_that_differs_from_the_ledger_is_found(busy: Ledger, observed) -> None:
    assert _rules(busy, observed=observed) == {"ledger-equals-cluster"}


def test_a_damaged_file_is_found(tmp_path, clock) -> None:
    path = tmp_path / "ledger.db"
    ledger = new_ledger(path, clock=clock)
    fence = ledger.take_lease(POOL, "me", seen=None)
    assert fence
    ledger.enqueue(fence, [waiting(f"r{n}") for n in range(300)])
    ledger.close()
    content = bytearray(path.read_bytes())
    # One row less in the first full page of an index (type 0x0a): the table and its index then disagree.
    cells = {start: int.from_bytes(content[start + 3 : start + 5], "big") for start in range(4096, len(content), 4096)}
    start = next(start for start, count in cells.items() if content[start] == 0x0A and count > 20)
    content[start + 3 : start + 5] = (cells[start] - 1).to_bytes(2, "big")
    path.write_bytes(content)

    ledger = Ledger.open(f"sqlite:///{path}", clock=clock)
    assert "database-intact" in _rules(ledger)
    ledger.close()
