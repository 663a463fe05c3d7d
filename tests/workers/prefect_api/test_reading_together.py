"""Reads of single things that are made together."""

from collections.abc import Mapping, Sequence

import anyio
import pytest

from dsec_workers.prefect_api import ApiUnavailable
from dsec_workers.prefect_api.reading_together import ReadingTogether


class Shelf:
    """What can be read, and which requests were made for it."""

    def __init__(self, *, fails: int = 0) -> None:
        self.asked: list[list[str]] = []
        self._fails = fails

    async def read(self, keys: Sequence[str]) -> Mapping[str, str]:
        self.asked.append(list(keys))
        if len(self.asked) <= self._fails:
            raise ApiUnavailable("away")
        return {key: key.upper() for key in keys if key != "deleted"}


async def _ask(together: ReadingTogether[str], keys: Sequence[str]) -> dict[str, str | None]:
    found: dict[str, str | None] = {}

    async def one(key: str) -> None:
        found[key] = await together.one(key)

    async with anyio.create_task_group() as group:
        for key in keys:
            group.start_soon(one, key)
    return found


async def test_what_is_asked_in_one_moment_is_one_request() -> None:
    shelf = Shelf()
    found = await _ask(ReadingTogether(shelf.read, seconds=0.02), ["b", "a", "deleted"])
    assert found == {"a": "A", "b": "B", "deleted": None}
    assert shelf.asked == [["a", "b", "deleted"]]


async def test_who_asks_while_the_request_is_on_its_way_is_answered_by_a_later_one() -> None:
    shelf, is_on_its_way, may_go_on = Shelf(), anyio.Event(), anyio.Event()

    async def slowly(keys: Sequence[str]) -> Mapping[str, str]:
        answer = await shelf.read(keys)
        is_on_its_way.set()
        await may_go_on.wait()
        return answer

    together = ReadingTogether(slowly, seconds=0.0)
    async with anyio.create_task_group() as group:
        group.start_soon(together.one, "a")
        await is_on_its_way.wait()
        group.start_soon(together.one, "a")
        await anyio.wait_all_tasks_blocked()
        may_go_on.set()
    assert shelf.asked == [["a"], ["a"]]


async def test_a_request_that_fails_fails_for_all_and_the_next_is_a_new_one() -> None:
    shelf = Shelf(fails=1)
    together = ReadingTogether(shelf.read, seconds=0.02)
    failures = 0

    async def one(key: str) -> None:
        nonlocal failures
        with pytest.raises(ApiUnavailable):
            await together.one(key)
        failures += 1

    async with anyio.create_task_group() as group:
        group.start_soon(one, "a")
        group.start_soon(one, "b")
    assert failures == 2
    assert await together.one("a") == "A"


async def test_others_are_told_when_whoever_asked_first_is_interrupted() -> None:
    shelf, first = Shelf(), anyio.CancelScope()
    together = ReadingTogether(shelf.read, seconds=60.0)

    async def begin() -> None:
        with first:
            await together.one("a")

    async def join() -> None:
        with pytest.raises(ApiUnavailable):
            await together.one("b")

    async with anyio.create_task_group() as group:
        group.start_soon(begin)
        await anyio.wait_all_tasks_blocked()
        group.start_soon(join)
        await anyio.wait_all_tasks_blocked()
        first.cancel()
    assert shelf.asked == []
