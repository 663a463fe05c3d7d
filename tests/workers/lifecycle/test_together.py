"""Marks that come at the same time are one transaction, and each gets its own answer."""

from collections.abc import Sequence
from typing import Any

import anyio
import anyio.lowlevel
import pytest

from dsec_blocks.model.errors import LedgerUnreachable, StaleAttempt
from dsec_workers.lifecycle import together
from dsec_workers.lifecycle.together import Together


class Disk:
    """A write that takes until it is let go, and remembers what it was given."""

    def __init__(self) -> None:
        self.batches: list[list[Any]] = []
        self.gates: list[anyio.Event] = []
        self.error: Exception | None = None

    async def write(self, marks: Sequence[tuple[Any, ...]]) -> list[Any]:
        self.batches.append([mark[0] for mark in marks])
        gate = anyio.Event()
        self.gates.append(gate)
        await gate.wait()
        if self.error is not None:
            raise self.error
        return [StaleAttempt(f"{name} is stale") if name.startswith("stale") else f"wrote {name}" for (name,) in marks]

    async def let_go(self, number: int) -> None:
        while len(self.gates) <= number:
            await anyio.lowlevel.checkpoint()
        self.gates[number].set()


async def _crowd(writer: Together, disk: Disk, names: Sequence[str], *, then: Sequence[str]) -> dict[str, Any]:
    """What each got: `names` come first, `then` come while the first write is under way."""
    found: dict[str, Any] = {}

    async def add(name: str) -> None:
        try:
            found[name] = await writer.add((name,))
        except Exception as error:
            found[name] = error

    async with anyio.create_task_group() as group:
        for name in names:
            group.start_soon(add, name)
        while not disk.batches:
            await anyio.lowlevel.checkpoint()
        for name in then:
            group.start_soon(add, name)
        await anyio.wait_all_tasks_blocked()
        number = 0
        while len(found) < len(names) + len(then):
            await disk.let_go(number)
            number += 1
            await anyio.wait_all_tasks_blocked()
    return found


async def test_whoever_comes_while_one_is_written_is_in_the_next() -> None:
    disk = Disk()
    found = await _crowd(Together(disk.write), disk, ["a"], then=["b", "c", "d"])
    assert disk.batches == [["a"], ["b", "c", "d"]]
    assert found == {name: f"wrote {name}" for name in "abcd"}


async def test_a_refusal_is_raised_where_it_belongs() -> None:
    disk = Disk()
    found = await _crowd(Together(disk.write), disk, ["a"], then=["stale-b", "c"])
    assert isinstance(found.pop("stale-b"), StaleAttempt)
    assert found == {"a": "wrote a", "c": "wrote c"}


async def test_a_transaction_that_fails_fails_for_all_who_were_in_it() -> None:
    disk = Disk()
    disk.error = LedgerUnreachable("away")
    found = await _crowd(Together(disk.write), disk, ["a"], then=["b", "c"])
    assert all(error is disk.error for error in found.values())


async def test_a_crowd_is_cut_so_that_the_beat_gets_its_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(together, "MOST", 2)
    disk = Disk()
    await _crowd(Together(disk.write), disk, ["a"], then=["b", "c", "d"])
    assert disk.batches == [["a"], ["b", "c"], ["d"]]


async def test_one_that_is_cancelled_while_it_waits_is_not_written() -> None:
    disk = Disk()
    writer = Together(disk.write)
    async with anyio.create_task_group() as group:
        group.start_soon(writer.add, ("a",))
        await anyio.wait_all_tasks_blocked()
        async with anyio.create_task_group() as given_up:
            given_up.start_soon(writer.add, ("b",))
            await anyio.wait_all_tasks_blocked()
            given_up.cancel_scope.cancel()
        group.start_soon(writer.add, ("c",))
        await anyio.wait_all_tasks_blocked()
        await disk.let_go(0)
        await disk.let_go(1)
    assert disk.batches == [["a"], ["c"]]


async def test_the_others_are_written_if_the_one_who_writes_is_cancelled() -> None:
    disk = Disk()
    writer = Together(disk.write)
    async with anyio.create_task_group() as group:
        async with anyio.create_task_group() as given_up:
            given_up.start_soon(writer.add, ("a",))
            await anyio.wait_all_tasks_blocked()
            group.start_soon(writer.add, ("b",))
            await anyio.wait_all_tasks_blocked()
            given_up.cancel_scope.cancel()
        await disk.let_go(1)
    assert disk.batches == [["a"], ["b"]]


async def test_a_mark_was_lost_when_another_was_cancelled_while_both_were_written(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(together, "LONGEST_LINGER_SECONDS", together.LINGER_SECONDS)
    disk = Disk()
    writer = Together(disk.write)
    found: list[str] = []

    async def add(name: str) -> None:
        found.append(await writer.add((name,)))

    async with anyio.create_task_group() as group:
        group.start_soon(add, "a")
        await anyio.wait_all_tasks_blocked()
        async with anyio.create_task_group() as given_up:
            group.start_soon(add, "b")
            await anyio.wait_all_tasks_blocked()
            given_up.start_soon(add, "c")
            await anyio.wait_all_tasks_blocked()
            await disk.let_go(0)
            await anyio.wait_all_tasks_blocked()  # b and c are being written
            group.start_soon(add, "d")
            await anyio.wait_all_tasks_blocked()
            given_up.cancel_scope.cancel()
        await anyio.wait_all_tasks_blocked()
        await disk.let_go(1)
        await disk.let_go(2)
    assert disk.batches == [["a"], ["b", "c"], ["d"]]
    assert found == ["wrote a", "wrote b", "wrote d"]


async def test_what_comes_in_quick_succession_is_written_together_though_no_write_takes_long(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(together, "LINGER_SECONDS", 1.0)
    batches: list[int] = []

    async def write(marks: Sequence[tuple[Any, ...]]) -> list[Any]:
        batches.append(len(marks))
        return [None] * len(marks)

    writer = Together(write)
    async with anyio.create_task_group() as group:
        for number in range(50):
            group.start_soon(writer.add, (number,))
            await anyio.lowlevel.checkpoint()
    assert len(batches) == 2 and sum(batches) == 50, "those that are there at once, and all that came within a second"


async def test_a_mark_after_a_single_one_of_another_kind_does_not_wait_for_a_crowd(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(together, "LINGER_SECONDS", 3600.0)
    batches: list[list[str]] = []

    async def write(marks: Sequence[str]) -> list[Any]:
        batches.append(list(marks))
        return [None] * len(marks)

    writer = Together(write, kind_of=lambda mark: mark[0])
    with anyio.fail_after(60):
        for mark in ("claimed", "launched", "started"):
            await writer.add(mark)
        async with anyio.create_task_group() as group:
            group.start_soon(writer.add, "started too")
            await anyio.wait_all_tasks_blocked()
            assert batches == [["claimed"], ["launched"], ["started"]], "another of the same kind may come"
            group.start_soon(writer.add, "ended")
            await anyio.wait_all_tasks_blocked()
            group.cancel_scope.cancel()
    assert len(batches) == 3
