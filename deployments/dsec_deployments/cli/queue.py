"""`dsec queue`: who waits, in which order, and for what."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from dsec_deployments.cli.options import Json, Pool

if TYPE_CHECKING:
    from dsec_deployments.cli.session import Session


def queue(
    pool: Pool = None,
    json: Json = False,
    factors: Annotated[bool, typer.Option("--factors/--no-factors", help="Show what each rank is the sum of.")] = True,
) -> None:
    """List the runs that wait for devices, first in line first.

    Example: [bold]dsec queue --no-factors[/]
    """
    from dsec_blocks.model.units import format_duration
    from dsec_deployments.cli.output import print_explained, print_json
    from dsec_deployments.cli.session import session

    with session(pool) as s:
        rows = waiting(s)
        now = s.clock.now()
    if json:
        print_json(rows)
        return
    print_explained(
        f"Queue of pool {s.pool}",
        ["#>", "run", "id", "team", "shape", "priority>", "waits>", "starts in"],
        [
            [row["position"], row["run"], row["run_id"][:8], row["team"], row["shape"], row["priority"]]
            + [format_duration(now - row["eligible_at"])]
            + [f"about {format_duration(row['eta'] - now)}" if row["eta"] else "", _why(row, factors=factors)]
            for row in rows
        ],
        empty=f"nothing waits in pool {s.pool}",
        last="why",
    )


def _why(row: dict[str, Any], *, factors: bool) -> str:
    parts = row["factors"] if factors else {}
    rank = " + ".join(f"{name} {value:.3g}" for name, value in parts.items())
    return f"{row['reason']}; rank {sum(parts.values()):.3g} = {rank}" if rank else str(row["reason"])


def waiting(s: Session) -> list[dict[str, Any]]:
    """One row a waiting gang, in the order of the line, as the next plan would see it."""
    from dsec_blocks.model.gangs import GangState
    from dsec_blocks.model.reasons import ReasonCode
    from dsec_deployments.foresight import holds
    from dsec_deployments.pool_checks import prefect_checks

    expected = holds(s.ledger, s.pool, now=s.clock.now(), checks=prefect_checks(s.prefect, s.pool))
    rows = []
    for gang in s.ledger.gangs(s.pool, {GangState.WAITING}):
        # What the worker refused before planning, no plan knows about: then the reason is the ledger's.
        paused = gang.reason_code == ReasonCode.ADMISSION_FROZEN and (gang.reason or "").endswith("is paused")
        refused = paused or gang.reason_code == ReasonCode.INVALID_REQUEST
        hold = None if refused else expected.get(gang.run_id)
        invalid = gang.reason_code == ReasonCode.INVALID_REQUEST
        rows.append(
            {
                "position": hold.position if hold else None,
                "run": gang.name,
                "run_id": gang.run_id,
                "team": gang.team,
                "shape": "?" if invalid else gang.request.describe(),
                "devices": None if invalid else gang.request.devices,
                "priority": gang.request.priority,
                "submitted_at": gang.submitted_at,
                "eligible_at": gang.eligible_at,
                "evictions": gang.evictions,
                "reason_code": hold.reason.code if hold else gang.reason_code,
                "reason": hold.reason.text if hold else gang.reason or "about to start",
                "eta": hold.eta if hold else None,
                "factors": dict(hold.factors) if hold else {},
            }
        )
    return sorted(rows, key=lambda row: (row["position"] or 10**9, -row["priority"], row["eligible_at"]))
