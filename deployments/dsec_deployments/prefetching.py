"""Asking for a bundle ahead of need, and watching it arrive: on this machine, or on nodes of one's choice.

Three ways, one way to watch: this machine's agent (its HTTP API), the agents of named nodes (an ask in the ledger), or,
where no agent runs, a fetch by the command itself.
"""

import threading
from collections.abc import Callable, Sequence
from pathlib import Path

from dsec_blocks.cache import Cache
from dsec_blocks.cache.bundles import BundleAddress
from dsec_blocks.cache.prefetch import Arrival, Asked, ByNodes, reporting
from dsec_blocks.ledger import Ledger
from dsec_blocks.model.clock import Clock
from dsec_workers.node_agent.client import AgentClient
from dsec_workers.node_agent.prefetching import OPEN, State

_PARTING_SECONDS = 5.0


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
