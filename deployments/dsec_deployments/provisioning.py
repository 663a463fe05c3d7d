"""What must exist in Prefect before a run can be sent: the work pool with its form, and a queue per team."""

from typing import Any

from dsec_blocks.model.errors import DsecError
from dsec_blocks.model.names import WORKER_TYPE
from dsec_blocks.model.teams import DEFAULT_TEAM, Team
from dsec_deployments.prefect_api import PrefectApi


def create_pool(api: PrefectApi, *, pool: str, template: dict[str, Any]) -> bool:
    """Create the work pool, or bring an older one's template up to date; whether it is new.

    Raises `DsecError` when a pool of that name belongs to another worker type.
    """
    existing = api.get(f"work_pools/{pool}")
    if existing is None:
        body = {
            "name": pool,
            "type": WORKER_TYPE,
            "description": "GPUs shared by DSec: a run waits here until its whole gang fits.",
            "base_job_template": template,
        }
        api.write("POST", "work_pools/", body, at="up.work_pool.create")
        return True
    if existing["type"] != WORKER_TYPE:
        raise DsecError(
            f"work pool {pool} exists with type {existing['type']}, not {WORKER_TYPE}; "
            "choose another name with --pool, or delete it in the Prefect UI"
        )
    return False


def upgrade_pool(api: PrefectApi, *, pool: str, template: dict[str, Any]) -> None:
    """Replace the pool's template by `template`, which already keeps the user's edits."""
    api.write("PATCH", f"work_pools/{pool}", {"base_job_template": template}, at="up.work_pool.upgrade")


def template_of(api: PrefectApi, *, pool: str) -> dict[str, Any]:
    """The pool's base job template as it is on the server."""
    found = api.get(f"work_pools/{pool}")
    return dict(found["base_job_template"]) if found else {}


def create_queue(api: PrefectApi, *, pool: str, team: Team) -> None:
    """Create the team's work queue if it is not there; its description says what the team may use."""
    if api.get(f"work_pools/{pool}") is None:
        raise DsecError(f"work pool {pool} does not exist on {api.url}; create it with `dsec up --pool {pool}`")
    description = f"Team {team.name}: {team.nominal_devices} devices of its own, weight {team.weight:g}."
    if api.get(f"work_pools/{pool}/queues/{team.name}") is None:
        body = {"name": team.name, "description": description}
        api.write("POST", f"work_pools/{pool}/queues", body, at="team.work_queue.create")
    elif team.name != DEFAULT_TEAM:
        body = {"description": description}
        api.write("PATCH", f"work_pools/{pool}/queues/{team.name}", body, at="team.work_queue.describe")
