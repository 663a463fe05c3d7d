"""Deployments with gang requests: what `@gang` asks for is merged under the explicit job variables.

The merged configuration is handed to Prefect's own `prefect deploy`, so that schedules, triggers, pull steps and
templating mean exactly what they mean there.
"""

import json
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from dsec_blocks.gang import merged_job_variables
from dsec_blocks.gateways import files, processes
from dsec_blocks.ledger import Ledger
from dsec_blocks.model.errors import DsecError, InvalidRequest, UnknownTeam
from dsec_blocks.model.reasons import NEEDS_A_CHANGE
from dsec_blocks.model.requests import GangRequest, parse_request
from dsec_blocks.model.teams import DEFAULT_TEAM
from dsec_deployments import installation as installations
from dsec_deployments.installation import Installation


def assignments(texts: Sequence[str], *, option: str) -> dict[str, Any]:
    """NAME=VALUE pairs; a value that reads as JSON is that, anything else is text."""
    parsed: dict[str, Any] = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not equals or not name:
            raise InvalidRequest(f"{option}: {text!r} is not NAME=VALUE")
        try:
            parsed[name] = json.loads(value)
        except ValueError:
            parsed[name] = value
    return parsed


def deploy_flow(
    target: str,
    *,
    name: str | None,
    team: str | None,
    cron: str | None,
    variables: Mapping[str, Any],
    parameters: Mapping[str, Any],
    installation: Installation,
    ledger: Ledger,
) -> list[str]:
    """Deploy the flow at `target` (FILE.py:FLOW); returns "flow/deployment"."""
    entrypoint = _entrypoint(target)
    entry: dict[str, Any] = {
        "name": name,
        "entrypoint": entrypoint,
        "parameters": dict(parameters),
        "work_pool": {"work_queue_name": team or DEFAULT_TEAM, "job_variables": dict(variables)},
    }
    if cron is not None:
        entry["schedules"] = [{"cron": cron}]
    return _deploy({"deployments": [entry]}, installation=installation, ledger=ledger)


def deploy_project(
    path: Path, *, installation: Installation, ledger: Ledger, skip: Callable[[str], None] | None = None
) -> list[str]:
    """Deploy every entry of a prefect.yaml that is for our pool (or names none).

    With `skip`, an entry that cannot run on this pool is left out and `skip` is told why; without, it is an error.
    """
    project = yaml.safe_load(path.read_text()) or {}
    entries = project.get("deployments") or []
    if not isinstance(entries, list):
        raise InvalidRequest(f"{path}: deployments is not a list")
    chosen = [e for e in entries if (e.get("work_pool") or {}).get("name") in (None, installation.pool)]
    if not chosen and skip is None:
        raise InvalidRequest(f"{path}: no deployment is for pool {installation.pool}; see its work_pool.name entries")
    if not chosen:
        return []
    return _deploy({**project, "deployments": chosen}, installation=installation, ledger=ledger, skip=skip)


def _deploy(
    project: dict[str, Any],
    *,
    installation: Installation,
    ledger: Ledger,
    skip: Callable[[str], None] | None = None,
) -> list[str]:
    prepared, names = [], []
    for entry in project["deployments"]:
        try:
            deployment, name = _prepare(entry, installation=installation, ledger=ledger)
        except (InvalidRequest, UnknownTeam) as error:
            if skip is None:
                raise
            skip(f"not deployed: {error}")
            continue
        prepared.append(deployment)
        names.append(name)
    if prepared:
        _prefect_deploy({**project, "deployments": prepared}, installation)
    return names


def _prepare(entry: Mapping[str, Any], *, installation: Installation, ledger: Ledger) -> tuple[dict[str, Any], str]:
    """The entry with what the flow's `@gang` asks for, and its full name. Raises if it could never run."""
    flow = _load(entry["entrypoint"])
    work_pool = entry.get("work_pool") or {}
    variables = merged_job_variables(flow, work_pool.get("job_variables"))
    name = entry.get("name") or flow.name
    team = work_pool.get("work_queue_name") or DEFAULT_TEAM
    _refuse_what_never_fits(parse_request(variables), team=team, name=name, pool=installation.pool, ledger=ledger)
    pool = {"name": installation.pool, "work_queue_name": team, "job_variables": variables}
    return {**entry, "name": name, "work_pool": pool}, f"{flow.name}/{name}"


def _refuse_what_never_fits(request: GangRequest, *, team: str, name: str, pool: str, ledger: Ledger) -> None:
    teams = ledger.teams(pool)
    if team not in teams:
        raise UnknownTeam(f"{name}: unknown team {team}; teams are {', '.join(sorted(teams))}; `dsec team add {team}`")
    if request.priority > teams[team].highest_priority:
        from dsec_workers.scheduling.reasons import above_highest_priority

        raise InvalidRequest(f"{name}: {above_highest_priority(request, teams[team]).text}")
    from dsec_deployments.foresight import reason_if_alone

    reason = reason_if_alone(request, team=teams[team], nodes=ledger.nodes(pool))
    if reason is not None and reason.code in NEEDS_A_CHANGE:
        raise InvalidRequest(f"{name}: {reason.text}")


def _entrypoint(target: str) -> str:
    path, colon, flow = target.partition(":")
    if not Path(path).exists():
        raise InvalidRequest(f"{path} does not exist; name a flow as FILE.py:FLOW")
    if colon and flow:
        return target
    import ast

    tree = ast.parse(Path(path).read_text())
    flows = [
        node.name
        for node in tree.body
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        and any("flow" in ast.unparse(decorator).partition("(")[0].split(".") for decorator in node.decorator_list)
    ]
    if len(flows) != 1:
        choices = ", ".join(f"{path}:{flow}" for flow in flows) or "none"
        raise InvalidRequest(f"{path} has {len(flows)} flows; name one: {choices}")
    return f"{path}:{flows[0]}"


def _load(entrypoint: str) -> Any:
    from prefect.flows import load_flow_from_entrypoint

    try:
        return load_flow_from_entrypoint(entrypoint)
    except DsecError:
        raise
    except Exception as error:  # user code can fail in any way while it is imported
        raise InvalidRequest(f"{entrypoint} cannot be loaded: {type(error).__name__}: {error}") from error


def _prefect_deploy(project: dict[str, Any], installation: Installation) -> None:
    home = installations.home()
    path = home / "deploy" / f"prefect-{os.getpid()}.yaml"
    path.parent.mkdir(parents=True, exist_ok=True)
    output = home / "logs" / "deploy.log"
    output.parent.mkdir(parents=True, exist_ok=True)
    files.write(path, yaml.safe_dump(project, sort_keys=False).encode(), at="deploy.project.write")
    environment = {**os.environ, "PREFECT_CLI_PROMPT": "false"}
    if installation.prefect_api_url:
        environment["PREFECT_API_URL"] = installation.prefect_api_url
    command = [sys.executable, "-m", "prefect", "--no-prompt", "deploy", "--all", "--prefect-file", str(path)]
    try:
        code, said = processes.complete(command, env=environment, at="deploy.prefect.run")
    finally:
        files.remove(path, at="deploy.project.remove")
    files.write(output, said, at="deploy.log.write")
    if code != 0:
        words = [line.strip() for line in said.decode(errors="replace").splitlines() if line.strip()]
        raise DsecError(f"prefect deploy failed: {words[-1] if words else f'exit code {code}'} (all of it in {output})")
