"""Whose turn it is to fill a bundle that several want at once: one goes ahead, the others wait for it.

This saves bandwidth and nothing rests on it: two that both go ahead publish the same content under different names.
"""

from collections.abc import Callable, Collection

from dsec_blocks.cache.bundles import BundleAddress
from dsec_blocks.cache.errors import TransferCancelled
from dsec_blocks.cache.store.marks import Mark, living, path_of, place, withdraw
from dsec_blocks.cache.store.store import Store
from dsec_blocks.cache.store.usage import last_write

_POLL_SECONDS = 0.05
IDLE_SECONDS = 30.0
"""A filler that writes nothing for so long is not waited for any more: it may be stopped."""


def begin(store: Store, address: BundleAddress, *, who: str, background: bool = False) -> Mark:
    """Say that this process would fill `address`; `background`: nobody waits for it."""
    store.prepare()
    ask = store.mark(who, key=address.key, uri=str(address), bytes=0, background=background)
    place(store.layout.asks, ask, at="cache.ask.place")
    return ask


def go_ahead(store: Store, ask: Mark, *, ignored: Collection[str] = ()) -> Mark | None:
    """Commit to filling: None, or whoever does it already, for whom to wait.

    Of those who would fill the first by name may; then it says so and looks again. Two can still come out of this, and
    then the bundle is fetched twice: this saves bandwidth, nothing rests on it.
    """
    found = _rivals(store, ask, ignored)
    first = [mark for mark in found if mark.fields.get("fills") or mark.id < ask.id]
    if first:
        return first[0]
    ask.fields["fills"] = True
    place(store.layout.asks, ask, at="cache.ask.commit")
    return next((mark for mark in _rivals(store, ask, ignored) if mark.fields.get("fills")), None)


def _rivals(store: Store, ask: Mark, ignored: Collection[str]) -> list[Mark]:
    """Others who fill the same address."""
    found = [*living(store.layout.asks, store.sight), *living(store.layout.reservations, store.sight)]
    return [
        mark
        for mark in found
        if mark.id != ask.id
        and mark.id not in ignored
        and mark.fields.get("key") == ask.fields["key"]
        and not mark.fields.get("abandoned")
    ]


def give_up(store: Store, ask: Mark) -> None:
    """Take an ask back."""
    withdraw(path_of(store.layout.asks, ask), at="cache.ask.withdraw")


def wait_for(store: Store, rival: Mark, *, who: str, cancelled: Callable[[], bool], background: bool = False) -> bool:
    """Wait until the other filler is done or dead; False when it has not moved for `IDLE_SECONDS`.

    It is told that somebody waits, unless nobody waits for us either: then it need not give way any more.

    Raises `TransferCancelled`.
    """
    if background:
        return _wait_for(store, rival, cancelled=cancelled)
    waiting = store.mark(who, waits_for=rival.id, uri=rival.fields.get("uri"), bytes=0)
    path = place(store.layout.asks, waiting, at="cache.wait.place")
    try:
        return _wait_for(store, rival, cancelled=cancelled)
    finally:
        withdraw(path, at="cache.wait.withdraw")


def _wait_for(store: Store, rival: Mark, *, cancelled: Callable[[], bool]) -> bool:
    seen, since = (-1, 0), store.clock.monotonic()
    while not cancelled():
        paths = [path_of(directory, rival) for directory in (store.layout.asks, store.layout.reservations)]
        present = [path for path in paths if path.exists()]
        if not present or all(store.sight.is_dead(rival, path) for path in present):
            return True
        written = last_write(store.layout, rival.id)
        if written != seen:
            seen, since = written, store.clock.monotonic()
        elif store.clock.monotonic() - since > IDLE_SECONDS:
            return False
        store.pause(_POLL_SECONDS)
    raise TransferCancelled(f"{rival.fields.get('uri')} is no longer wanted")
