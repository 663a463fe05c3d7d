"""Marks of all kinds, written as one commit: what a dozen gangs need at one moment is rarely of one kind.

Each kind is a method of the ledger that takes many gangs' values and answers each. Whoever waits for a mark goes on
when it is durable, as if it had been written alone: nothing follows from a mark before that. The decisions that were
put meanwhile go along.
"""

from collections.abc import Callable, Sequence
from typing import Any

from dsec_blocks.ledger import Decision, Fence, Ledger

Marking = Callable[[Fence, Sequence[Any]], Sequence[Any]]
Mark = tuple[Marking, tuple[Any, ...]]
"""A kind, and one gang's values."""


def write_marks(
    ledger: Ledger, fence: Fence, marks: Sequence[Mark], decisions: Sequence[Decision]
) -> tuple[list[Any], bool]:
    """The answers in their order, and whether the decisions are written.

    What one kind cannot write takes nothing from the others: each is then written alone, and those whose own failed are
    answered with its error. Raises what the commit raises, after which nobody knows what was written.
    """
    kinds: dict[Marking, list[int]] = {}
    for place, (kind, _) in enumerate(marks):
        kinds.setdefault(kind, []).append(place)
    answers: list[Any] = [None] * len(marks)

    def write(kind: Marking) -> None:
        places = kinds[kind]
        found = kind(fence, [marks[place][1] for place in places])
        for place, answer in zip(places, found, strict=True):
            answers[place] = answer

    is_undone = False
    try:
        with ledger.together(fence):
            try:
                for kind in kinds:
                    write(kind)
                if decisions:
                    ledger.decide(fence, decisions)
            except Exception:
                is_undone = True
                raise
    except Exception:
        if not is_undone:
            raise
    else:
        return answers, True
    for kind, places in kinds.items():
        try:
            write(kind)
        except Exception as error:  # noqa: BLE001 - it is raised by those whom it concerns
            for place in places:
                answers[place] = error
    return answers, False
