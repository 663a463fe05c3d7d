"""Who goes first when several fetch at once: what a start waits for, before what is only fetched ahead of need.

A prefetch says in its mark that nobody waits for it. While somebody else's fetch is waited for it goes on at a trickle.
Not at a standstill: its connections would be closed, and other nodes wait for the objects that it brings for all.
"""

from collections.abc import Callable

from dsec_blocks.cache.store.marks import Mark, living
from dsec_blocks.cache.store.store import Store

TRICKLE_SECONDS = 2.0
"""How long a fetch that gives way rests after each piece of at most 2 MiB."""
_LOOK_SECONDS = 0.25
_STEP_SECONDS = 0.05


def is_outranked(store: Store, own: Mark) -> bool:
    """Whether a start waits for another fetch and none for this one."""
    marks = [*living(store.layout.asks, store.sight), *living(store.layout.reservations, store.sight)]
    if any(mark.fields.get("waits_for") == own.id for mark in marks):
        return False
    return any(
        mark.id != own.id and not mark.fields.get("background") and not mark.fields.get("abandoned") for mark in marks
    )


class GivingWay:
    """A listener to a fetch's progress that slows it down while it is outranked."""

    def __init__(
        self, store: Store, own: Mark, *, progress: Callable[[int], None], cancelled: Callable[[], bool]
    ) -> None:
        self.seconds = 0.0
        """How long it has rested."""
        self._store = store
        self._own = own
        self._progress = progress
        self._cancelled = cancelled
        self._looked_at = float("-inf")

    def __call__(self, count: int) -> None:
        """Bytes arrived; called by one thread at a time, and the others wait for it."""
        self._progress(count)
        now = self._store.clock.monotonic()
        if now - self._looked_at < _LOOK_SECONDS:
            return
        self._looked_at = now
        rested = 0.0
        while rested < TRICKLE_SECONDS and not self._cancelled() and is_outranked(self._store, self._own):
            self._store.pause(_STEP_SECONDS)
            rested += _STEP_SECONDS
        if rested:
            self._looked_at = float("-inf")  # look again after the next piece
            self.seconds += rested
