"""What Prefect says of a work pool that keeps runs out whatever is free: pauses and run limits, by plain HTTP."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from dsec_deployments.prefect_api import PrefectApi


def prefect_checks(prefect: PrefectApi, pool: str) -> dict[str, Any] | None:
    """As `admission_checks.checks_as_told` takes it; None where Prefect does not answer or has no such pool."""
    found = prefect.get(f"work_pools/{pool}") if prefect.answers() else None
    if found is None:
        return None
    queues = prefect.pages(f"work_pools/{pool}/queues/filter", {})
    return {
        "is_paused": bool(found.get("is_paused")),
        "limit": found.get("concurrency_limit"),
        "paused_queues": sorted(queue["name"] for queue in queues if queue.get("is_paused")),
        "queue_limits": {
            queue["name"]: queue["concurrency_limit"] for queue in queues if queue.get("concurrency_limit") is not None
        },
    }
