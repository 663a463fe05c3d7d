"""Asking for a bundle ahead of need, and watching it arrive: on this machine, or on nodes of one's choice.

Three ways, one way to watch: this machine's agent (its HTTP API), the agents of named nodes (an ask in the ledger), or,
where no agent runs, a fetch by the command itself.
"""

import threading
import time
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from dsec_blocks.cache import Cache
from dsec_blocks.cache.bundles import BundleAddress
from dsec_blocks.ledger import Ledger
from dsec_blocks.ledger.prefetches import PrefetchState
from dsec_blocks.model.clock import Clock
from dsec_blocks.model.errors import DsecError, InvalidRequest
from dsec_workers.node_agent.client import AgentClient
from dsec_workers.node_agent.prefetching import OPEN, State

_POLL_SECONDS = 0.2
_PARTING_SECONDS = 5.0
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


class ByAgent:
    """A prefetch by the agent of this machine."""

    def __init__(self, client: AgentClient, address: BundleAddress) -> None:
        self._client = client
        self._id = client.prefetch(address)["id"]

    def arrivals(self) -> list[Arrival]:
        """One: this machine."""
        told = self._client.show(self._id)
        return [
            Arrival(
                node="this machine",
                is_open=told["state"] in OPEN,
                bytes_done=told["bytes_done"],
                bytes_total=told["bytes_total"],
                state=told["state"],
                error="" if told["state"] == State.DONE else told["error"],
            )
        ]

    def cancel(self) -> None:
        """Stop it, unless a run wants it as well."""
        self._client.cancel(self._id)


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


class ByMyself:
    """A prefetch by this process, into this machine's cache."""

    def __init__(self, cache: Cache, address: BundleAddress) -> None:
        self._cancelled = threading.Event()
        self._error: BaseException | None = None
        self._done = self._total = self._missing = 0
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._fetch, args=(cache, address), daemon=True)
        self._thread.start()

    def arrivals(self) -> list[Arrival]:
        """One: this machine. Raises what the fetch raised."""
        is_open = not self._over.is_set()
        if not is_open and self._error is not None:
            raise self._error
        here = self._total if not is_open else min(self._total, self._total - self._missing + self._done)
        state = State.FETCHING if is_open else State.DONE
        return [Arrival(node="this machine", is_open=is_open, bytes_done=here, bytes_total=self._total, state=state)]

    def cancel(self) -> None:
        """Stop, and keep what arrived for the next time."""
        self._cancelled.set()
        self._thread.join(_PARTING_SECONDS)

    def _fetch(self, cache: Cache, address: BundleAddress) -> None:
        def listed(total_bytes: int, missing_bytes: int) -> None:
            self._total, self._missing, self._done = total_bytes, missing_bytes, 0

        def arrived(count: int) -> None:
            self._done += count

        try:
            with cache.acquire(
                address.uri,
                include=address.include,
                exclude=address.exclude,
                who="prefetch",
                progress=arrived,
                listed=listed,
                cancelled=self._cancelled.is_set,
                background=True,
            ) as lease:
                self._total = lease.size_bytes
        except BaseException as error:  # noqa: BLE001 - raised again by whoever watches
            self._error = error
        finally:
            self._over.set()


def ask(
    address: BundleAddress,
    nodes: Sequence[str],
    *,
    home: Path,
    ledger: Callable[[], Ledger],
    cache: Callable[[], Cache],
    clock: Clock,
    by: str,
    note: Callable[[str], None],
) -> Asked:
    """Ask for `address` on `nodes`, or here if none is named. Raises `InvalidRequest` for a node without an agent."""
    if nodes:
        return ByNodes(ledger(), address, reporting(ledger(), nodes, now=clock.now()), by=by)
    client = AgentClient.of(home)
    if client is not None:
        return ByAgent(client, address)
    note("no agent runs here: this command fetches by itself")
    return ByMyself(cache(), address)


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
    failed = [one for one in arrivals if one.state != State.DONE]
    if failed:
        texts = dict.fromkeys(one.error or one.state for one in failed)
        where = ", ".join(one.node for one in failed)
        raise PrefetchFailed(f"not fetched on {where}: {'; '.join(texts)}")
    return arrivals
