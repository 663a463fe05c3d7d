"""What the agent does again and again: orders, figures, the report, and putting the cache in order.

The ledger may be away at any time, also when the agent starts: then the agent serves its own API all the same, and
says so in /health.
"""

import logging
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from dsec_blocks.cache import Cache
from dsec_blocks.cache.store import sweep
from dsec_blocks.ledger import Ledger
from dsec_blocks.model.errors import DsecError
from dsec_workers.node_agent.measuring import Measuring
from dsec_workers.node_agent.ordered import Ordered
from dsec_workers.node_agent.prefetching import Prefetches
from dsec_workers.node_agent.reporting import Reporting
from dsec_workers.node_agent.settings import AgentSettings

SWEEP_SECONDS = 600.0
_log = logging.getLogger(__name__)


@dataclass(kw_only=True)
class Rounds:
    """One thread calls `step`, as often as it likes."""

    settings: AgentSettings
    cache: Cache
    prefetches: Prefetches
    measuring: Measuring
    troubles: dict[str, str] = field(default_factory=dict, init=False)
    """What does not work now, by name."""
    _due: dict[str, float] = field(default_factory=dict, init=False)
    _ledger: Ledger | None = field(default=None, init=False)
    _ordered: Ordered | None = field(default=None, init=False)
    _reporting: Reporting | None = field(default=None, init=False)

    def step(self) -> None:
        """Do what is due. Raises nothing: trouble is kept, told in /health, and tried again."""
        self._try("ledger", self.settings.poll_seconds, self._orders)
        self._try("inventory", self.settings.report_seconds, self._report)
        self._try("cache", SWEEP_SECONDS, self._sweep)

    def health(self) -> dict[str, Any]:
        """Whether everything works, and what does not."""
        return {"ok": not self.troubles, "nodes": list(self.settings.nodes), "troubles": dict(self.troubles)}

    def hurry(self) -> None:
        """Something has changed on the disk: say so in the next step."""
        self._due["inventory"] = float("-inf")

    def close(self) -> None:
        """Let go of the ledger."""
        if self._ledger is not None:
            self._ledger.close()

    def _orders(self) -> None:
        self._opened()
        assert self._ordered is not None
        self._ordered.step()

    def _report(self) -> None:
        self.measuring.step()
        self._opened()
        assert self._reporting is not None
        self._reporting.step(bandwidth_bytes_per_s=self.measuring.tally.rounded_bandwidth)

    def _sweep(self) -> None:
        done = sweep(self.cache.store)
        if not done.is_nothing:
            _log.info("the cache was put in order: %s", done)

    def _opened(self) -> None:
        if self._ledger is None:
            clock, nodes = self.cache.store.clock, self.settings.nodes
            self._ledger = Ledger.open(self.settings.ledger_url, clock=clock)
            self._ordered = Ordered(self._ledger, self.prefetches, nodes=nodes, clock=clock)
            self._reporting = Reporting(self._ledger, self.cache, nodes)

    def _try(self, name: str, every_seconds: float, work: Callable[[], None]) -> None:
        now = self.cache.store.clock.monotonic()
        if now < self._due.get(name, float("-inf")):
            return
        self._due[name] = now + every_seconds
        try:
            work()
        except (DsecError, OSError) as error:
            text = str(error)
        except Exception as error:  # noqa: BLE001 - the agent goes on, and says what it could not do
            _log.exception("%s", name)
            text = f"{type(error).__name__}: {error}"
        else:
            if self.troubles.pop(name, None):
                _log.info("%s: works again", name)
            return
        if self.troubles.get(name) != text:
            _log.warning("%s: %s", name, text)
        self.troubles[name] = text
