"""The Prefect API as a worker uses it, each request counted and timed."""

from collections.abc import Mapping
from typing import Any

from prefect.client.orchestration import PrefectClient

from dsec_blocks.model.clock import Clock
from dsec_workers.metrics import WorkerMetrics
from dsec_workers.prefect_api.gateway import PrefectApi
from dsec_workers.prefect_api.results import ApiRefused, ApiUnavailable


class MeasuredApi(PrefectApi):
    """Counts what leaves, tries that are repeated included: that is what the server has to bear."""

    def __init__(self, client: PrefectClient, metrics: WorkerMetrics, *, clock: Clock) -> None:
        super().__init__(client)
        self._metrics = metrics
        self._clock = clock

    async def _request(self, method: str, path: str, names: Mapping[str, str], body: Any, **more: Any) -> Any:
        began, outcome = self._clock.monotonic(), "ok"
        try:
            return await super()._request(method, path, names, body, **more)
        except ApiRefused:
            outcome = "refused"
            raise
        except ApiUnavailable:
            outcome = "unavailable"
            raise
        finally:
            self._metrics.prefect(method, path, self._clock.monotonic() - began, outcome)
