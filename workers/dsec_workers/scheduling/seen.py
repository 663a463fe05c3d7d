"""Records that come again cycle after cycle, each with a row of its own: what is known of one is found once.

A record is known again because it is the same object, or equal to the one of that run id; it is frozen, so whatever
was worked out from it alone still holds. Rows of records that do not come again are given to others.
"""

from collections.abc import Sequence, Set
from typing import Any, Generic, Protocol, TypeVar

import numpy as np
import numpy.typing as npt

from dsec_workers.scheduling.fleet import Ints


class Named(Protocol):
    """What has a run id."""

    @property
    def run_id(self) -> str:
        """The run's."""
        ...


Record = TypeVar("Record", bound=Named)


class Seen(Generic[Record]):
    """See the module."""

    def __init__(self) -> None:
        self.records: list[Record | None] = []
        """By row; None is a row that is free."""
        self._by_id: dict[int, int] = {id(None): -1}
        self._by_run: dict[str, int] = {}
        self._free: list[int] = []

    def row_of(self, run_id: str) -> int | None:
        """The row of that run, if it is among the last records."""
        return self._by_run.get(run_id)

    def rows_of(self, run_ids: Set[str]) -> list[int]:
        """The rows of those of the runs that are among the last records."""
        return [self._by_run[run_id] for run_id in self._by_run.keys() & run_ids]

    def update(self, records: Sequence[Record | None]) -> tuple[Ints, list[int], list[tuple[int, Record]]]:
        """The row of each record (−1 for None), the rows that are new, and what has gone with the rows that it had."""
        found = list(map(self._by_id.get, map(id, records)))
        entered: list[int] = []
        if None in found:
            for index, row in enumerate(found):
                if row is None:
                    record = records[index]
                    assert record is not None
                    found[index] = self._known_again(record)
                    if found[index] is None:
                        found[index] = self._enter(record)
                        entered.append(self._by_id[id(record)])
        rows = np.array(found, np.int64)
        used = np.zeros(len(self.records) + 1, bool)
        used[rows] = True
        gone: list[tuple[int, Record]] = []
        if len(self._by_id) - 1 > int(np.count_nonzero(used[:-1])):
            gone = [self._leave(row) for row in np.flatnonzero(~used[:-1]).tolist() if self.records[row] is not None]
        return rows, entered, gone

    def _known_again(self, record: Record) -> int | None:
        row = self._by_run.get(record.run_id)
        if row is None or self.records[row] != record:
            return None
        del self._by_id[id(self.records[row])]
        self._by_id[id(record)] = row
        self.records[row] = record
        return row

    def _enter(self, record: Record) -> int:
        if self._free:
            row = self._free.pop()
            self.records[row] = record
        else:
            row = len(self.records)
            self.records.append(record)
        self._by_id[id(record)] = self._by_run[record.run_id] = row
        return row

    def _leave(self, row: int) -> tuple[int, Record]:
        record = self.records[row]
        assert record is not None
        del self._by_id[id(record)]
        if self._by_run.get(record.run_id) == row:
            del self._by_run[record.run_id]
        self.records[row] = None
        self._free.append(row)
        return row, record


def grown(values: npt.NDArray[Any], size: int) -> npt.NDArray[Any]:
    """`values` with room for at least so many; what is new is zero."""
    if len(values) >= size:
        return values
    more = np.zeros(max(size, 2 * len(values), 64), values.dtype)
    more[: len(values)] = values
    return more
