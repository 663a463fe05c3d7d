"""Writes of one kind that come at the same time are one transaction: group commit, as databases do it.

A commit waits for the disk, and two of one leader never run at once, because each holds the lease's row. With hundreds
of gangs on their way that wait is nearly all that a mark costs. So whoever comes while a transaction is being written
waits for it, and the next one takes everybody who waits: alone, a mark is as fast as ever; in a crowd, as fast as
the crowd.
"""

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any

import anyio

LINGER_SECONDS = 0.03
"""From one transaction to the next of its kind, at least: gangs that come in quick succession are written together."""
MOST = 256
"""Marks in one transaction: others, the beat above all, wait for the lease's row as long as it takes."""


@dataclass(eq=False, slots=True)
class _Waiting:
    mark: tuple[Any, ...]
    over: bool = False
    answer: Any = None
    error: Exception | None = None


class Together:
    """One kind of write; `write` takes many marks and answers each, with an exception for those it refuses."""

    def __init__(self, write: Callable[[Sequence[tuple[Any, ...]]], Awaitable[Sequence[Any]]]) -> None:
        self._write = write
        self._waiting: list[_Waiting] = []
        self._lock = anyio.Lock()
        self._wrote_at = float("-inf")

    async def add(self, mark: tuple[Any, ...]) -> Any:
        """Write `mark`, with whatever else waits; its own answer.

        Raises what the transaction raised, for everybody in it (nothing was written), or this mark's refusal.
        """
        mine = _Waiting(mark)
        self._waiting.append(mine)
        try:
            async with self._lock:
                if not mine.over:
                    await anyio.sleep(max(0.0, self._wrote_at + LINGER_SECONDS - anyio.current_time()))
                    await self._flush()
                    self._wrote_at = anyio.current_time()
        finally:
            if not mine.over:  # cancelled before anybody took it
                self._waiting.remove(mine)
        if mine.error is not None:
            raise mine.error
        return mine.answer

    async def _flush(self) -> None:
        batch = self._waiting[:MOST]
        try:
            answers = await self._write([each.mark for each in batch])
        except Exception as error:  # noqa: BLE001 - it is raised by everybody who is in the batch
            answers = [error] * len(batch)
        taken = set(batch)  # by name, not by place: some of them may have been cancelled meanwhile
        self._waiting = [each for each in self._waiting if each not in taken]
        for each, answer in zip(batch, answers, strict=True):
            each.over = True
            if isinstance(answer, Exception):
                each.error = answer
            else:
                each.answer = answer
