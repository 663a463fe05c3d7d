"""From what a person types to a flow run: an id, the beginning of one, or a name."""

from __future__ import annotations

import string
from typing import TYPE_CHECKING, Any
from uuid import UUID

from dsec_blocks.model.errors import DsecError

if TYPE_CHECKING:
    from dsec_deployments.prefect_api import PrefectApi

SHORTEST_PREFIX = 4


def find_run(api: PrefectApi, text: str, *, pool: str) -> dict[str, Any]:
    """The one flow run of `pool` that `text` means, as Prefect tells it.

    Raises `DsecError` when none or several match; the message lists the candidates.
    """
    try:
        run = api.get(f"flow_runs/{UUID(text)}")
    except ValueError:
        run = None
    if run:
        return dict(run)
    in_pool = {"work_pools": {"name": {"any_": [pool]}}, "sort": "START_TIME_DESC"}
    found = api.pages("flow_runs/filter", {**in_pool, "flow_runs": {"name": {"any_": [text]}}})
    if not found and _is_prefix(text):
        found = [run for run in api.pages("flow_runs/filter", in_pool) if run["id"].startswith(text.lower())]
    if not found:
        raise DsecError(
            f"no run {text!r} in pool {pool}; `dsec queue` lists those that wait, `dsec pool` those that run"
        )
    if len(found) > 1:
        candidates = ", ".join(f"{run['id'][:8]} ({run['name']}, {run['state_name']})" for run in found[:5])
        raise DsecError(f"{text!r} means {len(found)} runs: {candidates}; use an id")
    return dict(found[0])


def _is_prefix(text: str) -> bool:
    return len(text) >= SHORTEST_PREFIX and set(text.lower()) <= set(string.hexdigits.lower() + "-")
