"""Orders in the ledger: what the leader wants on this machine's nodes, because gangs have been given a place there, and
what somebody asked of them by hand.

Each step reads what is wanted now, asks the fetches for it, says how far they are, and lets go of what is no longer
wanted. Killed anywhere, the next step of the next agent does the same.
"""

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import TypedDict

from dsec_blocks.cache.bundles import BundleAddress
from dsec_blocks.ledger import Ledger
from dsec_blocks.ledger.prefetches import Prefetch, PrefetchState
from dsec_blocks.model.clock import Clock
from dsec_blocks.model.errors import DsecError
from dsec_workers.node_agent.prefetching import OPEN, Prefetches, Prefetching, State, totals

Key = tuple[str, str, int]
_log = logging.getLogger(__name__)


class _Told(TypedDict):
    bytes_done: int
    bytes_total: int
    state: PrefetchState
    at: float
    error: str | None
    figures: Mapping[str, float]


@dataclass(slots=True)
class _Carried:
    order: Prefetch
    fetches: list[Prefetching]
    told: tuple[PrefetchState, int, int] | None = None


class Ordered:
    """The orders of this machine's nodes, carried out. One thread steps."""

    def __init__(self, ledger: Ledger, prefetches: Prefetches, *, nodes: Sequence[str], clock: Clock) -> None:
        self._ledger = ledger
        self._prefetches = prefetches
        self._nodes = nodes
        self._clock = clock
        self._carried: dict[Key, _Carried] = {}

    def step(self) -> int:
        """One round; returns how many orders are open. Raises `LedgerError`."""
        found = [
            order
            for node in self._nodes
            for order in (*self._ledger.prefetches_for(node), *self._ledger.asked_prefetches(node))
        ]
        orders = {_key(order): order for order in found}
        for key in [key for key in self._carried if key not in orders]:
            self._let_go(key)
        for key, order in orders.items():
            if key not in self._carried and not self._take(key, order):
                continue
            self._tell(key)
        return len(orders)

    def _take(self, key: Key, order: Prefetch) -> bool:
        try:
            addresses = [BundleAddress.parse(text) for text in order.addresses]
        except DsecError as error:
            self._say(order, PrefetchState.FAILED, (0, 0), error=str(error))
            return False
        fetches = [self._prefetches.want(address, by=_by(order)) for address in addresses]
        self._carried[key] = _Carried(order, fetches)
        return True

    def _tell(self, key: Key) -> None:
        carried = self._carried[key]
        state, error = judge(carried.fetches)
        bytes_done, bytes_total = totals(carried.fetches)
        if carried.told == (state, bytes_done, bytes_total):
            return
        figures = measured(carried.fetches) if state is PrefetchState.DONE else {}
        wanted = self._say(carried.order, state, (bytes_done, bytes_total), error=error, figures=figures)
        carried.told = (state, bytes_done, bytes_total)
        if not wanted or state not in (PrefetchState.ORDERED, PrefetchState.FETCHING):
            self._let_go(key)

    def _let_go(self, key: Key) -> None:
        carried = self._carried.pop(key)
        if any(_by(other.order) == _by(carried.order) for other in self._carried.values()):
            return  # the same run wants it on another node of this machine
        for one in carried.fetches:
            self._prefetches.unwant(one, by=_by(carried.order))

    def _say(
        self,
        order: Prefetch,
        state: PrefetchState,
        done: tuple[int, int],
        *,
        error: str | None = None,
        figures: Mapping[str, float] = MappingProxyType({}),
    ) -> bool:
        if error:
            _log.warning("prefetch for %s: %s", _by(order), error)
        told: _Told = {
            "bytes_done": done[0],
            "bytes_total": done[1],
            "state": state,
            "at": self._clock.now(),
            "error": error,
            "figures": figures,
        }
        if order.attempt:
            return self._ledger.prefetch_progress(order.node, order.run_id, order.attempt, **told)
        return self._ledger.asked_progress(order.node, order.run_id, **told)


def judge(fetches: Sequence[Prefetching]) -> tuple[PrefetchState, str | None]:
    """What an order has come to, by its fetches; the first that failed says why."""
    if any(one.state is State.FETCHING for one in fetches):
        return PrefetchState.FETCHING, None
    if any(one.state in OPEN for one in fetches):
        begun = any(one.state is not State.QUEUED for one in fetches)
        return (PrefetchState.FETCHING if begun else PrefetchState.ORDERED), None
    failed = [one for one in fetches if one.state is not State.DONE]
    return (PrefetchState.FAILED, failed[0].error) if failed else (PrefetchState.DONE, None)


def measured(fetches: Sequence[Prefetching]) -> dict[str, float]:
    """Seconds of the stages, for all addresses of an order together."""
    return {stage: round(sum(one.figures.get(stage, 0.0) for one in fetches), 3) for stage in ("fetch", "verify")}


def _key(order: Prefetch) -> Key:
    return (order.node, order.run_id, order.attempt)


def _by(order: Prefetch) -> str:
    return f"run {order.run_id}" if order.attempt else order.run_id
