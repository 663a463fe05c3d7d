"""`dsec prioritize | evict | cancel`: what an operator may ask of a run.

The first two write a wish into the ledger and the worker makes it so; a cancellation is Prefect's own, and the worker
honours it like one from the UI.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from dsec_deployments.cli.options import Pool, Run, Why

if TYPE_CHECKING:
    from dsec_deployments.cli.session import Session

ANSWER_SECONDS = 5.0
"""How long a command waits for the worker to take up its wish; the wish stays either way."""


def prioritize(
    run: Run,
    priority: Annotated[int, typer.Argument(min=0, max=1000, help="Its new priority, up to its team's highest.")],
    why: Why = "",
    pool: Pool = None,
) -> None:
    """Give a waiting run another priority; the next plan uses it.

    Example: [bold]dsec prioritize bronze-otter 80 --why "paper deadline"[/]
    """
    from dsec_blocks.model.errors import InvalidRequest, UnknownTeam
    from dsec_blocks.model.gangs import GangState
    from dsec_deployments.cli.session import session

    with session(pool) as s:
        gang = find_gang(s, run)
        team = s.ledger.teams(s.pool).get(gang.team)
        if team is None:
            raise UnknownTeam(f"run {gang.name} is in unknown team {gang.team}; `dsec team add {gang.team}` first")
        if priority > team.highest_priority:
            from dataclasses import replace

            from dsec_workers.scheduling.reasons import above_highest_priority

            raise InvalidRequest(above_highest_priority(replace(gang.request, priority=priority), team).text)
        if gang.state is not GangState.WAITING:
            raise InvalidRequest(f"run {gang.name} is {gang.state}, only a waiting run can be moved in the line")
        _wish(s, "prioritize", gang.run_id, {"priority": priority}, why=why)


def evict(run: Run, why: Why, pool: Pool = None) -> None:
    """Let a run checkpoint, take its devices, and put it back in the line.

    Example: [bold]dsec evict bronze-otter --why "node 3 goes to repair"[/]
    """
    from dsec_blocks.model.errors import InvalidRequest
    from dsec_blocks.model.gangs import HOLDING_STATES
    from dsec_deployments.cli.session import session

    with session(pool) as s:
        gang = find_gang(s, run)
        if gang.state not in HOLDING_STATES:
            raise InvalidRequest(f"run {gang.name} is {gang.state} and holds no devices; there is nothing to evict")
        _wish(s, "evict", gang.run_id, {}, why=why)


def cancel(run: Run, why: Why = "", pool: Pool = None) -> None:
    """Cancel a run, as the button in the Prefect UI does.

    Example: [bold]dsec cancel 3f9c2a[/]
    """
    from dsec_blocks.model.errors import DsecError
    from dsec_deployments.cli.output import console
    from dsec_deployments.cli.session import session
    from dsec_deployments.runs import find_run

    with session(pool) as s:
        found = find_run(s.prefect, run, pool=s.pool)
        message = f"Cancelled by {s.user}" + (f": {why}" if why else "")
        state = {"type": "CANCELLING", "name": "Cancelling", "message": message}
        body = {"state": state, "force": False}
        path = f"flow_runs/{found['id']}/set_state"
        answer = s.prefect.write("POST", path, body, at="cancel.state.write")
        if answer["status"] not in ("ACCEPT", "REJECT"):
            details = answer.get("details") or {}
            raise DsecError(f"run {found['name']} cannot be cancelled: {details.get('reason') or answer['status']}")
        name = (answer.get("state") or {}).get("name", "Cancelling")
        console.print(f"run {found['name']} ({found['id'][:8]}) is {name}")


def find_gang(s: Session, text: str) -> Any:
    """The gang of the run that `text` means."""
    from dsec_blocks.model.errors import DsecError
    from dsec_deployments.runs import find_run

    found = find_run(s.prefect, text, pool=s.pool)
    gang = s.ledger.gang(found["id"])
    if gang is None:
        raise DsecError(f"run {found['name']} ({found['state_name']}) has not reached pool {s.pool}; see `dsec status`")
    return gang


def _wish(s: Session, kind: str, run_id: str, args: dict[str, Any], *, why: str) -> None:
    from dsec_deployments.cli.output import console, messages

    wish = s.ledger.wish(s.pool, kind, run_id, args, by=s.user, why=why)
    with messages.status("the worker takes it up …"):
        outcome = wait_for_outcome(s, wish, ANSWER_SECONDS)
    if outcome is None:
        console.print(f"{kind} {run_id[:8]}: written down; no worker has taken it up yet (`dsec status`)")
    else:
        console.print(f"{kind} {run_id[:8]}: {outcome}")


def wait_for_outcome(s: Session, wish: int, seconds: float) -> str | None:
    """What the worker made of the wish; None when it has not looked within `seconds`."""
    import time

    deadline = s.clock.monotonic() + seconds
    while (outcome := s.ledger.wish_outcome(wish)) is None and s.clock.monotonic() < deadline:
        time.sleep(0.2)
    return outcome
