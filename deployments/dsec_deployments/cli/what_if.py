"""`dsec what-if`: what the pool would do with a run that nobody has started yet."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from dsec_deployments.cli.options import Json, Pool

if TYPE_CHECKING:
    from dsec_blocks.model.requests import GangRequest
    from dsec_deployments.cli.session import Session
    from dsec_deployments.foresight import Answer, Present


def what_if(
    request: Annotated[
        str | None,
        typer.Argument(help="A shape (2x8), a YAML or JSON file of job variables, or a deployment (FLOW/NAME)."),
    ] = None,
    variables: Annotated[
        list[str] | None, typer.Option("--set", "-s", help="A job variable, NAME=VALUE; wins. Repeatable.")
    ] = None,
    team: Annotated[
        str | None, typer.Option("--team", help='The team; the deployment\'s, or "default", by default.')
    ] = None,
    add_nodes: Annotated[
        int, typer.Option("--add-nodes", min=0, help="Also answer for so many more nodes of the commonest kind.")
    ] = 0,
    incident: Annotated[
        Path | None,
        typer.Option("--incident", help="Ask the pool as [bold]dsec incident capture[/] has written it to this file."),
    ] = None,
    pool: Pool = None,
    json: Json = False,
) -> None:
    """Tell what would become of a run if it were started now: when, where, and who would have to make room.

    The pool's own `plan()` is asked, on a copy of what the ledger knows; nothing is changed and nobody is told.

    Example: [bold]dsec what-if 2x8 -s priority=50 --team vision --add-nodes 2[/]
    """
    from dsec_deployments import foresight
    from dsec_deployments.cli.output import console, print_json
    from dsec_deployments.cli.session import session
    from dsec_deployments.pool_checks import prefect_checks
    from dsec_workers.lifecycle.data_distance import weighed

    with session(pool) as s:
        asked, of_team = _request(s, request, variables or [])
        if incident:
            there = foresight.captured(incident)
        else:
            checks = prefect_checks(s.prefect, s.pool)
            there = foresight.present(s.ledger, s.pool, now=s.clock.now(), checks=checks)
    gang = foresight.newcomer(asked, team=team or of_team, now=there.now)
    answers = [told("now", foresight.what_if(there, gang), there)]
    if add_nodes:
        larger, like = foresight.with_more_nodes(there, add_nodes)
        label = f"with {add_nodes} more {'node' if add_nodes == 1 else 'nodes'} like {like.name}"
        answers.append(told(label, foresight.what_if(larger, gang), larger))
    data = weighed(there.data.of(asked.inputs), there.policy.cache_seconds_per_card)
    if json:
        unknown = list(there.unknown)
        print_json(
            {"request": asked.to_json(), "team": gang.team, "data": data, "answers": answers, "unknown": unknown}
        )
        return
    _print(asked, gang.team, data, answers)
    if there.unknown:
        console.print(f"Not known here, and heeded by the worker: {'; '.join(there.unknown)}.", markup=False)


def told(label: str, answer: Answer, present: Present) -> dict[str, Any]:
    """One answer in plain values."""
    admit, hold = answer.admit, answer.hold
    where = admit.placement.to_json() if admit else []
    return {
        "if": label,
        "starts": admit is not None,
        "why": admit.why if admit else hold.reason.text if hold else "it is left to the next cycle",
        "reason_code": hold.reason.code if hold else None,
        "position": hold.position if hold else None,
        "starts_in_seconds": None if hold is None or hold.eta is None else max(0.0, hold.eta - present.now),
        "where": where,
        "later_on": list(answer.shadow.devices) if answer.shadow else [],
        "evicts": [
            {"run_id": victim.run_id, "run": present.names.get(victim.run_id, ""), "cost_device_seconds": victim.cost}
            for victim in (admit.victims if admit else answer.recalls)
        ],
        "waits_for": list(admit.waits_for) if admit else [],
        "may_stay_seconds": None
        if answer.conditional_until is None
        else max(0.0, answer.conditional_until - present.now),
    }


def _request(s: Session, text: str | None, assignments: list[str]) -> tuple[GangRequest, str]:
    """The request, and the team that goes with it."""
    from dsec_blocks.model.errors import InvalidRequest
    from dsec_blocks.model.requests import REQUEST_VARIABLES, parse_request
    from dsec_blocks.model.teams import DEFAULT_TEAM
    from dsec_deployments.deployment import assignments as parsed

    given, team = _variables(s, text) if text is not None else ({}, DEFAULT_TEAM)
    given |= parsed(assignments, option="--set")
    unknown = [name for name in given if name not in REQUEST_VARIABLES]
    if unknown and not _is_deployment(text):
        raise InvalidRequest(f"{unknown[0]!r} is no part of a request; there are {', '.join(REQUEST_VARIABLES)}")
    if not given:
        raise InvalidRequest("no request: give a shape such as 2x8, a file, a deployment, or -s NAME=VALUE")
    return parse_request(given), team


def _is_deployment(text: str | None) -> bool:
    return text is not None and "/" in text and not text.endswith((".yaml", ".yml", ".json"))


def _variables(s: Session, text: str) -> tuple[dict[str, Any], str]:
    import re

    from dsec_blocks.model.errors import DsecError, InvalidRequest
    from dsec_blocks.model.teams import DEFAULT_TEAM

    if shape := re.fullmatch(r"(?:(\d+)\s*[x×]\s*)?(\d+)", text.strip()):
        return {"nodes": int(shape[1] or 1), "devices_per_node": int(shape[2])}, DEFAULT_TEAM
    if text.endswith((".yaml", ".yml", ".json")):
        return _file(Path(text)), DEFAULT_TEAM
    if not _is_deployment(text):
        raise InvalidRequest(f"{text!r} is neither a shape (2x8), a .yaml or .json file, nor a deployment (FLOW/NAME)")
    found = s.prefect.get(f"deployments/name/{text}")
    if not found:
        raise DsecError(f"Prefect has no deployment {text!r}; `prefect deployment ls` lists them")
    if found.get("work_pool_name") != s.pool:
        raise DsecError(
            f"deployment {text} is for work pool {found.get('work_pool_name')}, not for {s.pool}; give --pool"
        )
    return dict(found.get("job_variables") or {}), found.get("work_queue_name") or DEFAULT_TEAM


def _file(path: Path) -> dict[str, Any]:
    import yaml

    from dsec_blocks.model.errors import InvalidRequest

    try:
        given = yaml.safe_load(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise InvalidRequest(f"{path} cannot be read ({error.strerror})") from None
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise InvalidRequest(f"{path} is neither YAML nor JSON: {' '.join(str(error).split())}") from None
    if not isinstance(given, dict):
        raise InvalidRequest(f"{path} is no mapping of job variables such as {{nodes: 2, devices_per_node: 8}}")
    return given


def _print(request: GangRequest, team: str, data: list[dict[str, Any]], answers: list[dict[str, Any]]) -> None:
    from dsec_blocks.model.units import format_duration
    from dsec_deployments.cli.output import console, print_data

    console.print(f"{request.describe()}, priority {request.priority}, team {team}", markup=False)
    if request.inputs:
        print_data(data)
    for answer in answers:
        lead = f"{answer['if']}: "
        if not answer["starts"]:
            place = f", place {answer['position']} in line" if answer["position"] else ""
            when = answer["starts_in_seconds"]
            about = "" if when is None else f", would start in about {format_duration(when)}"
            console.print(f"{lead}it would wait{place}{about}: {answer['why']}", markup=False)
            if answer["later_on"]:
                console.print(f"  then on {', '.join(answer['later_on'])}", markup=False)
            _print_victims(answer)
            continue
        promised = answer["evicts"] or answer["waits_for"]
        console.print(f"{lead}it would {'be promised devices' if promised else 'start'} at once: {answer['why']}")
        for member in answer["where"]:
            console.print(f"  on {member['node']}: {', '.join(member['devices']) or 'no device'}", markup=False)
        _print_victims(answer)
        for run_id in answer["waits_for"]:
            console.print(f"  once {run_id} has left", markup=False)
        if answer["may_stay_seconds"] is not None:
            stay = format_duration(answer["may_stay_seconds"])
            console.print(f"  on condition: the head of the line may evict it after {stay}", markup=False)


def _print_victims(answer: dict[str, Any]) -> None:
    from dsec_deployments.cli.output import console

    for victim in answer["evicts"]:
        name = victim["run"] or victim["run_id"]
        cost = f"{victim['cost_device_seconds']:,.0f} device-seconds"
        console.print(f"  evicts {name} ({victim['run_id'][:8]}), at a cost of {cost}", markup=False)
