"""Why thousands wait, by column: a sequence of holds that makes each one when somebody looks at it.

A plan has a hold for everybody who waits, and most are read once, if at all. As objects they would outlive their cycle
in their thousands, and the garbage collector would go through all of them again and again.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import chain, count
from typing import Any, overload

import numpy.typing as npt

from dsec_blocks.model.reasons import Reason
from dsec_workers.scheduling.decisions import Hold
from dsec_workers.scheduling.fleet import Floats, Ints


@dataclass(frozen=True, eq=False, repr=False, slots=True, kw_only=True)
class HoldTable(Sequence[Hold]):
    """Equal to any sequence of the same holds. Nothing in it changes."""

    run_ids: npt.NDArray[Any]
    kinds: Ints
    """Whose reason and summands each has, by number."""
    reasons: Sequence[Reason]
    summands: Sequence[tuple[float, ...]]
    positions: Ints
    etas: Mapping[int, float]
    """By place in the table; most have none."""
    ages: Floats
    others: tuple[Hold, ...] = ()
    """Holds that come after those."""

    def __len__(self) -> int:
        """How many."""
        return len(self.run_ids) + len(self.others)

    def __iter__(self) -> Iterator[Hold]:
        """One after the other."""
        kinds = self.kinds.tolist()
        columns = (
            self.run_ids.tolist(),
            map(self.reasons.__getitem__, kinds),
            self.positions.tolist(),
            map(self.etas.get, count()),
            self.ages.tolist(),
            map(self.summands.__getitem__, kinds),
        )
        # As `Hold._make`, without a call in Python for each.
        return chain(map(partial(tuple.__new__, Hold), zip(*columns, strict=False)), self.others)

    @overload
    def __getitem__(self, index: int) -> Hold: ...

    @overload
    def __getitem__(self, index: slice) -> Sequence[Hold]: ...

    def __getitem__(self, index: int | slice) -> Hold | Sequence[Hold]:
        """One hold, or some."""
        if isinstance(index, slice):
            return tuple(self)[index]
        place = index if index >= 0 else len(self) + index
        if not 0 <= place < len(self):
            raise IndexError(f"hold {index} of {len(self)}")
        if place >= len(self.run_ids):
            return self.others[place - len(self.run_ids)]
        kind = int(self.kinds[place])
        return Hold(
            run_id=self.run_ids[place],
            reason=self.reasons[kind],
            position=int(self.positions[place]),
            eta=self.etas.get(place),
            age=float(self.ages[place]),
            others=self.summands[kind],
        )

    def __eq__(self, other: object) -> bool:
        """Whether the holds are the same, in the same order."""
        if not isinstance(other, (HoldTable, tuple)):
            return NotImplemented
        return len(self) == len(other) and all(mine == theirs for mine, theirs in zip(self, other, strict=True))

    def __hash__(self) -> int:
        """That of the same holds in a tuple."""
        return hash(tuple(self))

    def __repr__(self) -> str:
        """As a tuple shows them."""
        return repr(tuple(self))
