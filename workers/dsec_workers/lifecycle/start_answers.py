"""What every flow process would ask the server at its start, asked here once for many of them.

Best effort: whatever is not known is asked by the flow process itself.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import anyio

from dsec_workers.clusters.protocol import Known
from dsec_workers.lifecycle.intake import Intake
from dsec_workers.lifecycle.term import Term
from dsec_workers.prefect_api import ApiRefused, ApiUnavailable, Run

DEPLOYMENT_SECONDS = 1.0
"""How old the copy of a deployment may be that goes with a start: it may just have been deployed anew."""
STORAGE_SECONDS = 5.0


@dataclass(kw_only=True)
class StartAnswers:
    """Remembers the server's default result storage for a moment; deployments are the intake's."""

    _storage: Mapping[str, Any] | None = None
    _storage_read_at: float = float("-inf")
    _asking: anyio.Lock = field(default_factory=anyio.Lock)

    async def of(self, intake: Intake, term: Term, run: Run) -> Known | None:
        """What is known for a start of `run` at this moment."""
        try:
            deployment, read_at = await intake.deployments.recent(term, run, seconds=DEPLOYMENT_SECONDS)
            storage = await self._default_storage(term)
        except (ApiUnavailable, ApiRefused):
            return None
        age = term.clock.monotonic() - read_at if deployment is not None else 0.0
        return Known(read_at=term.clock.now() - age, deployment=deployment, default_storage=storage)

    async def _default_storage(self, term: Term) -> Mapping[str, Any] | None:
        async with self._asking:
            began = term.clock.monotonic()
            if began - self._storage_read_at > STORAGE_SECONDS:
                self._storage = await term.api.default_storage()
                self._storage_read_at = began
        return self._storage
