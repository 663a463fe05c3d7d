"""Asking nodes for a bundle ahead of need, and watching it arrive: what the command and the flow have in common.

Whoever asks and whoever fetches meet in the ledger only, so the nodes may be anywhere.
"""

import time
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Protocol

from dsec_blocks.cache.bundles import BundleAddress
from dsec_blocks.ledger import Ledger
from dsec_blocks.ledger.prefetches import PrefetchState
from dsec_blocks.model.errors import DsecError, InvalidRequest

_POLL_SECONDS = 0.2
EVERY_NODE = "all"


class PrefetchFailed(DsecError):
    """A bundle did not arrive everywhere."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Arrival:
    """How far one node is."""

    node: str
    is_open: bool
    bytes_done: int
    bytes_total: int
    state: str
    error: str = ""


class Asked(Protocol):
    """A prefetch that was asked for."""

    def arrivals(self) -> list[Arrival]:
        """How far each node is."""

    def cancel(self) -> None:
        """Nobody wants it any more."""


class ByNodes:
    """A prefetch by the agents of named nodes, wherever they are."""

    def __init__(self, ledger: Ledger, address: BundleAddress, nodes: Collection[str], *, by: str) -> None:
        self._ledger = ledger
        self._name = ledger.ask_prefetch([str(address)], nodes, by=by)

    def arrivals(self) -> list[Arrival]:
        """One a node."""
        return [
            Arrival(
                node=one.node,
                is_open=one.is_open,
                bytes_done=one.bytes_done,
                bytes_total=one.bytes_total,
                state=one.state,
                error=one.error or ("somebody took it back" if one.state is PrefetchState.WITHDRAWN else ""),
            )
            for one in self._ledger.prefetch_ask(self._name)
        ]

    def cancel(self) -> None:
        """Take it back from every node that is not done."""
        self._ledger.withdraw_ask(self._name)


def reporting(ledger: Ledger, nodes: Sequence[str], *, now: float) -> list[str]:
    """The nodes that were named, if each has an agent that reports. Raises `InvalidRequest`."""
    known = {name: found for name, found in ledger.inventories().items() if not found.is_stale(now)}
    listed = ", ".join(sorted(known)) or "none: start one with `dsec up` or `dsec agent`"
    if EVERY_NODE in nodes:
        if not known:
            raise InvalidRequest(f"--nodes all: no node has an agent that reports ({listed})")
        return sorted(known)
    for name in nodes:
        if name not in known:
            raise InvalidRequest(f"--nodes: no agent reports for node {name!r}; those that do: {listed}")
    return sorted(set(nodes))


def watch(asked: Asked, *, show: Callable[[list[Arrival]], None]) -> list[Arrival]:
    """Watch until it has ended everywhere; interrupted, it is taken back. Raises `PrefetchFailed`."""
    try:
        while True:
            arrivals = asked.arrivals()
            show(arrivals)
            if not any(one.is_open for one in arrivals):
                break
            time.sleep(_POLL_SECONDS)
    except KeyboardInterrupt:
        with suppress(DsecError):
            asked.cancel()
        raise
    failed = [one for one in arrivals if one.state != PrefetchState.DONE]
    if failed:
        texts = dict.fromkeys(one.error or one.state for one in failed)
        where = ", ".join(one.node for one in failed)
        raise PrefetchFailed(f"not fetched on {where}: {'; '.join(texts)}")
    return arrivals
