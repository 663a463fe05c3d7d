"""The one gateway to the Prefect API: named fault points, one retry policy, typed results.

`PrefectApi` is what the lifecycle uses; `Run` is a flow run as it reads it; `ApiUnavailable` means that nobody knows
whether the request arrived, so the caller reads back or tries again at a later tick.
"""

from dsec_workers.prefect_api.gateway import PrefectApi
from dsec_workers.prefect_api.results import (
    ApiRefused,
    ApiUnavailable,
    Deployment,
    Proposal,
    Queue,
    Run,
    RunState,
    Transition,
)

__all__ = [
    "ApiRefused",
    "ApiUnavailable",
    "Deployment",
    "PrefectApi",
    "Proposal",
    "Queue",
    "Run",
    "RunState",
    "Transition",
]
