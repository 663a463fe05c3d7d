"""What runs inherit: the deployments that they came from, as lately read.

A user may deploy anew at any moment, so what is read before a run was does not count for it.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import anyio

from dsec_workers.lifecycle.term import Term
from dsec_workers.prefect_api import Deployment, Run

DEPLOYMENTS_AHEAD = 20


@dataclass(kw_only=True)
class Deployments:
    """The deployments of this pool's runs."""

    known: dict[str, Deployment] = field(default_factory=dict)
    """By id; the last is the last used."""
    read_at: dict[str, float] = field(default_factory=dict)
    """When each was read (monotonic, at the request's beginning)."""
    rereading: anyio.Lock = field(default_factory=anyio.Lock)
    """Many claims want the same deployment at once: who waits finds it read."""

    async def of(self, term: Term, run: Run) -> Deployment | None:
        """The run's deployment, read if it is not known."""
        if run.deployment_id is None:
            return None
        if run.deployment_id not in self.known:
            self.known |= await term.api.deployments([run.deployment_id])
        return self.known.get(run.deployment_id)

    async def recent(self, term: Term, run: Run, *, seconds: float) -> tuple[Mapping[str, Any] | None, float]:
        """The run's deployment as read at most `seconds` ago, and when that was (monotonic)."""
        deployment_id = run.deployment_id or ""
        async with self.rereading:
            if term.clock.monotonic() - self.read_at.get(deployment_id, float("-inf")) > seconds:
                await self._read(term, [deployment_id] if deployment_id else [])
        read_at = self.read_at.get(deployment_id, float("-inf"))
        is_recent = term.clock.monotonic() - read_at <= seconds
        deployment = self.known.get(deployment_id) if is_recent else None
        return (deployment.raw if deployment is not None else None), read_at

    async def read_for(self, term: Term, runs: Iterable[Run], *, since: float, entered: Collection[str]) -> None:
        """Read what new runs inherit, unless it was read after `since`, when reading them began (monotonic)."""
        wanted = {
            run.deployment_id
            for run in runs
            if run.deployment_id and run.id not in entered and self.read_at.get(run.deployment_id, -1.0) < since
        }
        await self._read(term, sorted(wanted))

    async def read_again(self, term: Term, runs: Iterable[Run]) -> None:
        """Read what these inherit: no event tells that a deployment was changed while its runs wait."""
        await self._read(term, sorted({run.deployment_id for run in runs if run.deployment_id}))

    async def read_ahead(self, term: Term) -> None:
        """Read those again that were used last: one may just have been deployed anew."""
        await self._read(term, list(self.known)[-DEPLOYMENTS_AHEAD:])

    async def _read(self, term: Term, deployment_ids: Sequence[str]) -> None:
        if not deployment_ids:
            return
        began = term.clock.monotonic()
        for deployment_id, deployment in (await term.api.deployments(deployment_ids)).items():
            self.known.pop(deployment_id, None)
            self.known[deployment_id] = deployment
            self.read_at[deployment_id] = began
