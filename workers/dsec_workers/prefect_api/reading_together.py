"""Reads that can wait for company: what many ask for within a moment is one request.

One run among others in an answer costs the server a tenth of a request of its own.
"""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Generic, TypeVar

import anyio

from dsec_workers.prefect_api.results import ApiUnavailable

_T = TypeVar("_T")


class ReadingTogether(Generic[_T]):
    """Gathers keys for `seconds`, then reads all of them at once. Every answer is newer than its question."""

    def __init__(self, read: Callable[[Sequence[str]], Awaitable[Mapping[str, _T]]], *, seconds: float) -> None:
        self._read = read
        self._seconds = seconds
        self._open: _Batch[_T] | None = None

    async def one(self, key: str) -> _T | None:
        """What is found under `key`; None when there is no such thing. Raises what the common request raises."""
        batch = self._open
        if batch is not None:
            batch.keys.add(key)
            await batch.is_over.wait()
        else:
            batch = self._open = _Batch()
            batch.keys.add(key)
            await self._carry_out(batch)
        if batch.failure is not None:
            raise batch.failure
        return batch.found.get(key)

    async def _carry_out(self, batch: "_Batch[_T]") -> None:
        try:
            await anyio.sleep(self._seconds)
            self._open = None  # who asks from now on may mean something that happened after this
            batch.found = await self._read(sorted(batch.keys))
            batch.failure = None
        except Exception as error:  # noqa: BLE001 - raised to everybody who asked
            batch.failure = error
        finally:
            if self._open is batch:
                self._open = None
            batch.is_over.set()


class _Batch(Generic[_T]):
    def __init__(self) -> None:
        self.keys: set[str] = set()
        self.is_over = anyio.Event()
        self.found: Mapping[str, _T] = {}
        self.failure: Exception | None = ApiUnavailable("whoever asked for all of them was interrupted")
