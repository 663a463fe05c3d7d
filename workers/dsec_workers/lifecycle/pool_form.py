"""What the work pool says at the moment: whether it is paused, its form, its queues, and how many runs they allow."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from dsec_workers.form import upgraded_template
from dsec_workers.lifecycle.run_limits import RunLimits
from dsec_workers.lifecycle.term import Term
from dsec_workers.prefect_api import ApiRefused

POOL_SECONDS = 3.0
"""How long all of it may be out of date."""


@dataclass(kw_only=True)
class PoolForm:
    """A work pool as last read."""

    is_paused: bool = False
    template: Mapping[str, Any] = field(default_factory=dict)
    """Its base job template; empty until it has been read."""
    queues: tuple[str, ...] = ()
    paused_queues: frozenset[str] = frozenset()
    limits: RunLimits = field(default_factory=RunLimits)
    read_at: float = float("-inf")
    """monotonic"""
    is_upgraded: bool = False
    """Whether the template has been compared with this version's."""

    async def read(self, term: Term) -> bool:
        """Read it, unless that was done a moment ago; whether the template has changed."""
        if term.clock.monotonic() - self.read_at < POOL_SECONDS:
            return False
        pool = await term.api.pool(term.pool)
        queues = await term.api.queues(term.pool)
        self.is_paused = bool(pool.get("is_paused"))
        template = await self._up_to_date(term, pool.get("base_job_template") or {})
        is_changed, self.template = template != self.template, template
        self.queues = tuple(queue.name for queue in queues)
        self.paused_queues = frozenset(queue.name for queue in queues if queue.paused)
        self.limits = RunLimits(
            pool=pool.get("concurrency_limit"),
            queues={queue.name: queue.limit for queue in queues if queue.limit is not None},
        )
        self.read_at = term.clock.monotonic()
        return is_changed

    async def _up_to_date(self, term: Term, present: Mapping[str, Any]) -> Mapping[str, Any]:
        """The pool's template as this version ships it, the user's edits kept; looked at once in a term.

        Whoever upgrades a worker, by whatever command it is started, finds the new fields in the form.
        """
        if self.is_upgraded or not present:
            return present
        upgraded = upgraded_template(present)
        if upgraded != present:
            try:
                await term.api.update_template(term.pool, upgraded)
                term.log.info("work pool %s: its form was brought up to date, your edits kept", term.pool)
            except ApiRefused as error:
                term.log.warning("work pool %s: its form stays as it is: %s", term.pool, error)
                upgraded = dict(present)
        self.is_upgraded = True
        return upgraded
