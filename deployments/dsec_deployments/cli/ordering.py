"""Writing an order down and waiting until the worker has taken it up: what the operator's commands share."""

from __future__ import annotations

import datetime
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from dsec_deployments.cli.session import Session

ANSWER_SECONDS = 5.0
"""How long a command waits for the worker to take up its order; the order stands either way."""


def order(s: Session, kind: str, args: dict[str, Any], *, why: str, run_id: str | None = None, done: str) -> int:
    """Write the order into the ledger and say `done` once the worker has it. Returns its number."""
    import time

    from dsec_blocks.model.errors import DsecError
    from dsec_deployments.cli.output import console, messages

    wish = s.ledger.wish(s.pool, kind, run_id, args, by=s.user, why=why)
    deadline = s.clock.monotonic() + ANSWER_SECONDS
    with messages.status("the worker takes it up …"):
        while not s.ledger.wish_taken_up(wish) and s.clock.monotonic() < deadline:
            time.sleep(0.2)
    outcome = s.ledger.wish_outcome(wish)
    if outcome is not None and outcome.startswith("refused"):
        raise DsecError(f"{kind}: {outcome}")
    if s.ledger.wish_taken_up(wish):
        console.print(done)
    else:
        console.print(f"{done} (written down as order {wish}; no worker has taken it up yet, see `dsec status`)")
    return wish


def moment(text: str, *, now: float, option: str) -> float:
    """Seconds since the epoch in `text`: a span from now ("2h", "now"), the next "18:00", or a date and time (local).

    Raises `typer.BadParameter`.
    """
    import typer

    from dsec_blocks.model.errors import InvalidRequest
    from dsec_blocks.model.units import parse_duration

    if text == "now":
        return now
    try:
        return datetime.datetime.fromisoformat(text).astimezone().timestamp()
    except ValueError:
        pass
    try:
        clock = datetime.time.fromisoformat(text)
        today = datetime.datetime.fromtimestamp(now).astimezone()
        then = datetime.datetime.combine(today.date(), clock).astimezone()
        return (then if then > today else then + datetime.timedelta(days=1)).timestamp()
    except ValueError:
        pass
    try:
        return now + parse_duration(text, field=option)
    except InvalidRequest:
        raise typer.BadParameter(
            f"{text!r} is neither a span from now ('2h') nor a time ('18:00', '2026-12-01T08:00')", param_hint=option
        ) from None


def clock_time(seconds: float) -> str:
    """A moment as people read it, in local time."""
    return datetime.datetime.fromtimestamp(seconds).astimezone().strftime("%Y-%m-%d %H:%M")
