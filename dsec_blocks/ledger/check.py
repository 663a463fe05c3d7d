"""The proof that the ledger is sound: each invariant is looked for in the rows; nothing is repaired.

A violation names its rule, so that a test can plant each one and see it found.
"""

from collections import Counter, defaultdict
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa

from dsec_blocks.ledger import schema
from dsec_blocks.ledger.prefetches import OPEN_STATES
from dsec_blocks.ledger.transaction import Transactions
from dsec_blocks.model.gangs import HOLDING_STATES, GangState, Placement

_ALIVE_STATES = frozenset({GangState.LAUNCHING, GangState.RUNNING, GangState.EVICTING, GangState.LEAVING})
"""States in which the cluster may have processes of a gang."""
_SEEN_STATES = frozenset({GangState.RUNNING, GangState.EVICTING})
"""States in which it must have them."""
_ON_ITS_WAY = frozenset({GangState.EVICTING, GangState.LEAVING})
"""States in which it may have a place to go on."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Violation:
    """One broken invariant: which rule, on which object, in words."""

    rule: str
    object: str
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class _Facts:
    gangs: Mapping[str, Any]
    reservations: list[Any]
    open_evictions: list[Any]
    open_prefetches: list[Any]


class Check(Transactions):
    """Reads one consistent state and judges it."""

    def check(self, pool: str | None = None, *, observed: Collection[tuple[str, int]] | None = None) -> list[Violation]:
        """Every violation in `pool` (all pools if None); none means sound.

        With `observed`, the (run id, attempt) keys alive on the cluster, the ledger must also equal the cluster.
        """
        with self.reading() as connection:
            damage = list(_damage(connection))
            facts = _facts(connection, pool)
        rules = (_held_twice, _whole_or_absent, _owned, _zero_when_idle, _turns, _placements, _evictions, _prefetches)
        found = damage + [violation for rule in rules for violation in rule(facts)]
        if observed is not None:
            found += _cluster(facts, frozenset((run_id, attempt) for run_id, attempt in observed))
        return found


def _facts(connection: sa.Connection, pool: str | None) -> _Facts:
    gangs, reservations, evictions = schema.gangs.c, schema.reservations.c, schema.evictions.c
    prefetches = schema.prefetches.c
    columns = (gangs.run_id, gangs.state, gangs.attempt, gangs.placement, gangs.resumes_at)
    queries: tuple[sa.Select[Any], ...] = (
        sa.select(*columns),
        sa.select(reservations.device, reservations.turn, reservations.run_id, reservations.attempt),
        sa.select(evictions.run_id, evictions.attempt).where(evictions.state == "open"),
        sa.select(prefetches.run_id, prefetches.attempt, prefetches.node).where(prefetches.state.in_(OPEN_STATES)),
    )
    if pool is not None:
        queries = tuple(
            query.where(table.pool == pool)
            for query, table in zip(queries, (gangs, reservations, evictions, prefetches), strict=True)
        )
    rows = [list(connection.execute(query)) for query in queries]
    return _Facts(
        gangs={gang.run_id: gang for gang in rows[0]},
        reservations=rows[1],
        open_evictions=rows[2],
        open_prefetches=rows[3],
    )


def _damage(connection: sa.Connection) -> Iterator[Violation]:
    if connection.dialect.name == "sqlite":
        for line in connection.exec_driver_sql("PRAGMA quick_check").scalars():
            if line != "ok":
                yield Violation(rule="database-intact", object="database", text=line)


def _held_twice(facts: _Facts) -> Iterator[Violation]:
    for (device, turn), count in Counter((row.device, row.turn) for row in facts.reservations).items():
        if count > 1:
            yield Violation(
                rule="device-held-once", object=device, text=f"{count} gangs have turn {turn} on device {device}"
            )
    for (device, run_id, _), count in Counter((r.device, r.run_id, r.attempt) for r in facts.reservations).items():
        if count > 1:
            yield Violation(
                rule="device-held-once",
                object=device,
                text=f"device {device} is reserved {count} times by run {run_id}",
            )


def _whole_or_absent(facts: _Facts) -> Iterator[Violation]:
    held: dict[tuple[str, int], set[str]] = defaultdict(set)
    for row in facts.reservations:
        held[row.run_id, row.attempt].add(row.device)
    for gang in facts.gangs.values():
        if gang.resumes_at is not None:
            needed, has = set(Placement.from_json(gang.resumes_at).devices), held.get(_next(gang), set())
            if has != needed or gang.state not in _ON_ITS_WAY:
                text = f"run {gang.run_id} is {gang.state}, with {len(has & needed)} of the {len(needed)} devices "
                text += "that it is to go on with" + (f" and {len(has - needed)} others" if has - needed else "")
                yield Violation(rule="gang-whole-or-absent", object=gang.run_id, text=text)
        if gang.state not in HOLDING_STATES or gang.placement is None:
            continue
        # From launching on, a gang may have released its devices while it is still on its way out.
        needed, has = set(Placement.from_json(gang.placement).devices), held.get((gang.run_id, gang.attempt), set())
        if has != needed and (has or gang.state == GangState.RESERVED):
            yield Violation(
                rule="gang-whole-or-absent",
                object=gang.run_id,
                text=f"run {gang.run_id} is {gang.state} with {len(has & needed)} of its {len(needed)} devices"
                + (f" and {len(has - needed)} that are not its own" if has - needed else ""),
            )


def _next(gang: Any) -> tuple[str, int]:
    return gang.run_id, gang.attempt + 1


def _owned(facts: _Facts) -> Iterator[Violation]:
    for row in facts.reservations:
        state = _not_holding(facts, row)
        if state is not None:
            yield Violation(
                rule="reservation-has-a-holder",
                object=row.device,
                text=f"device {row.device} is reserved for run {row.run_id}, attempt {row.attempt}, which is {state}",
            )


def _not_holding(facts: _Facts, row: Any) -> str | None:
    """What the attempt that a row belongs to is instead of holding devices; None while it holds them."""
    gang = facts.gangs.get(row.run_id)
    if gang is None:
        return "unknown"
    holds = gang.state in HOLDING_STATES and gang.attempt == row.attempt
    holds = holds or (gang.resumes_at is not None and row.attempt == gang.attempt + 1)
    return None if holds else f"{gang.state}, attempt {gang.attempt}"


def _zero_when_idle(facts: _Facts) -> Iterator[Violation]:
    if facts.reservations and not any(g.state in HOLDING_STATES or g.resumes_at for g in facts.gangs.values()):
        yield Violation(
            rule="zero-when-idle",
            object="pool",
            text=f"no gang may hold devices, but {len(facts.reservations)} reservations are left",
        )


def _turns(facts: _Facts) -> Iterator[Violation]:
    first = {row.device: row for row in facts.reservations if row.turn == 0}
    for row in facts.reservations:
        if row.turn == 0:
            continue
        ahead = first.get(row.device)
        holder = facts.gangs.get(ahead.run_id) if ahead is not None else None
        if ahead is None:
            text = f"device {row.device} is promised to run {row.run_id}, but nobody holds it"
        elif holder is not None and holder.state != GangState.EVICTING:
            text = (
                f"device {row.device} is promised to run {row.run_id} behind run {holder.run_id}, "
                f"which is {holder.state}"
            )
        else:
            continue
        yield Violation(rule="promise-behind-an-eviction", object=row.device, text=text)


def _placements(facts: _Facts) -> Iterator[Violation]:
    for gang in facts.gangs.values():
        if gang.state in HOLDING_STATES and gang.placement is None:
            text = f"run {gang.run_id} is {gang.state} but has no placement"
        elif gang.state in (GangState.WAITING, GangState.ENDED) and gang.placement is not None:
            text = f"run {gang.run_id} is {gang.state} but still has a placement"
        else:
            continue
        yield Violation(rule="placement-while-holding", object=gang.run_id, text=text)


def _evictions(facts: _Facts) -> Iterator[Violation]:
    in_flight = {(row.run_id, row.attempt) for row in facts.open_evictions}
    evicting = {(g.run_id, g.attempt) for g in facts.gangs.values() if g.state == GangState.EVICTING}
    for run_id, attempt in sorted(evicting - in_flight):
        yield Violation(
            rule="evicting-has-a-reason",
            object=run_id,
            text=f"run {run_id}, attempt {attempt}, is evicting but no eviction is in flight",
        )
    for run_id, attempt in sorted(in_flight - evicting):
        yield Violation(
            rule="evicting-has-a-reason",
            object=run_id,
            text=f"an eviction of run {run_id}, attempt {attempt}, is in flight but that attempt is not evicting",
        )


def _prefetches(facts: _Facts) -> Iterator[Violation]:
    for row in facts.open_prefetches:
        state = _not_holding(facts, row)
        if state is not None:
            yield Violation(
                rule="prefetch-follows-its-gang",
                object=row.run_id,
                text=f"node {row.node} is to fetch for run {row.run_id}, attempt {row.attempt}, which is {state}",
            )


def _cluster(facts: _Facts, observed: frozenset[tuple[str, int]]) -> Iterator[Violation]:
    for run_id, attempt in sorted(observed):
        gang = facts.gangs.get(run_id)
        if gang is None or gang.attempt != attempt or gang.state not in _ALIVE_STATES:
            state = "unknown" if gang is None else f"{gang.state}, attempt {gang.attempt}"
            yield Violation(
                rule="ledger-equals-cluster",
                object=run_id,
                text=f"the cluster runs attempt {attempt} of run {run_id}, which in the ledger is {state}",
            )
    for gang in facts.gangs.values():
        if gang.state in _SEEN_STATES and (gang.run_id, gang.attempt) not in observed:
            yield Violation(
                rule="ledger-equals-cluster",
                object=gang.run_id,
                text=f"run {gang.run_id}, attempt {gang.attempt}, is {gang.state} but the cluster does not know it",
            )
