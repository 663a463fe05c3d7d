"""Writes that come at the same time are one transaction: group commit, as databases do it.

A commit waits for the disk, and two of one leader never run at once, because each holds the lease's row. With hundreds
of gangs on their way that wait is nearly all that a mark costs. So whoever comes while a transaction is being written
waits for it, and the next one takes everybody who waits: alone, a mark is as fast as ever; in a crowd, as fast as
the crowd. A crowd waits a little longer for more of itself, the longer the slower it is written: on a machine that is
full, what a transaction costs beside its marks is what others wait for.
"""

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any

import anyio

LINGER_SECONDS, LONGEST_LINGER_SECONDS = 0.03, 0.2
"""From one transaction to the next, at least: what comes in quick succession is written together. Twice as long as the
last one took, within these bounds."""
MOST = 256
"""Marks in one transaction: others, the beat above all, wait for the lease's row as long as it takes."""


@dataclass(eq=False, slots=True)
class _Waiting:
    mark: tuple[Any, ...]
    over: bool = False
    answer: Any = None
    error: Exception | None = None


class Together:
    """`write` takes many marks and answers each, with an exception for those it refuses. `kind_of` tells kinds apart:
    one mark after one of another kind, as a single gang makes them, is no crowd and does not linger.
    """

    def __init__(
        self,
        write: Callable[[Sequence[Any]], Awaitable[Sequence[Any]]],
        *,
        kind_of: Callable[[Any], object] = lambda _: None,
    ) -> None:
        self._write, self._kind_of = write, kind_of
        self._waiting: list[_Waiting] = []
        self._lock = anyio.Lock()
        self._not_before = float("-inf")
        self._last: Sequence[Any] = ()

    @property
    def is_awaited(self) -> bool:
        """Whether a mark waits to be written, or is being written."""
        return bool(self._waiting)

    async def add(self, mark: tuple[Any, ...]) -> Any:
        """Write `mark`, with whatever else waits; its own answer.

        Raises what the transaction raised, for everybody in it (nothing was written), or this mark's refusal.
        """
        mine = _Waiting(mark)
        self._waiting.append(mine)
        try:
            async with self._lock:
                if not mine.over:
                    if not self._is_alone() and len(self._waiting) < MOST:
                        await anyio.sleep(max(0.0, self._not_before - anyio.current_time()))
                    await self._flush()
        finally:
            if not mine.over:  # cancelled before anybody took it
                self._waiting.remove(mine)
        if mine.error is not None:
            raise mine.error
        return mine.answer

    def _is_alone(self) -> bool:
        if len(self._last) != 1:
            return False
        last = self._kind_of(self._last[0])
        return all(self._kind_of(each.mark) != last for each in self._waiting)

    async def _flush(self) -> None:
        batch, began = self._waiting[:MOST], anyio.current_time()
        try:
            answers = await self._write([each.mark for each in batch])
        except Exception as error:  # noqa: BLE001 - it is raised by everybody who is in the batch
            answers = [error] * len(batch)
        now, self._last = anyio.current_time(), [each.mark for each in batch]
        self._not_before = now + max(LINGER_SECONDS, min(LONGEST_LINGER_SECONDS, 2 * (now - began)))
        taken = set(batch)  # by name, not by place: some of them may have been cancelled meanwhile
        self._waiting = [each for each in self._waiting if each not in taken]
        for each, answer in zip(batch, answers, strict=True):
            each.over = True
            if isinstance(answer, Exception):
                each.error = answer
            else:
                each.answer = answer
