"""Why Jobs have no pods, in the API server's own words, read for all gangs of a namespace together.

The API server keeps no index of events: it reads all of them for each list, whoever is asked about. Where a controller
is busy, thousands of pods come late at the same time; were each gang to ask for itself, the answers would take what the
controller needs to catch up.
"""

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from dsec_blocks.model.clock import Clock
from dsec_workers.clusters.kubernetes.api import Api

REREAD_SECONDS = 3.0
"""What was read is good for so long."""
_FIELDS = "involvedObject.kind=Job,reason=FailedCreate"


@dataclass
class _Heard:
    at: float = float("-inf")
    """When it was asked for (monotonic)."""
    by_job: Mapping[str, str] = field(default_factory=dict)
    """uid of a Job → why its pod could not be created, the newest reason."""
    reading: asyncio.Lock = field(default_factory=asyncio.Lock)


class Complaints:
    """Events about pods that could not be created, by namespace."""

    def __init__(self, api: Api, *, clock: Clock) -> None:
        self._api, self._clock = api, clock
        self._heard: dict[str, _Heard] = {}

    async def about(self, job: Mapping[str, Any]) -> str | None:
        """Why the Job's pod was not even created (a quota, an admission hook); None as long as nobody complains."""
        metadata = job["metadata"]
        heard = self._heard.setdefault(metadata["namespace"], _Heard())
        async with heard.reading:
            now = self._clock.monotonic()
            if now - heard.at > REREAD_SECONDS:
                heard.at = now  # also when it fails: those who wait for it must not fail one after the other
                heard.by_job = await self._read(metadata["namespace"])
        return heard.by_job.get(metadata["uid"])

    async def _read(self, namespace: str) -> dict[str, str]:
        events, _ = await self._api.list(f"/api/v1/namespaces/{namespace}/events", fields=_FIELDS)
        return {event["involvedObject"]["uid"]: str(event.get("message") or "") for event in events}
