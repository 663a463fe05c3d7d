"""`dsec logs`: what a run printed, from Prefect, so that it works from any machine and after the run."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from dsec_deployments.cli.options import Json, Pool, Run

if TYPE_CHECKING:
    from dsec_deployments.prefect_api import PrefectApi

POLL_SECONDS = 1.0
TERMINAL = frozenset({"COMPLETED", "FAILED", "CRASHED", "CANCELLED"})
LATE_SECONDS = 15.0
"""How much later than a newer line an older one may arrive: the flow and its ranks send theirs separately."""
LAST_WORDS_SECONDS = 4.0
"""How long after its end a run's last lines may still be on their way."""
_LEVELS = {10: "DEBUG", 20: "INFO", 30: "WARNING", 40: "ERROR", 50: "CRITICAL"}


def logs(
    run: Run,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Keep printing until the run has ended.")] = False,
    pool: Pool = None,
    json: Json = False,
) -> None:
    """Print a run's log.

    Example: [bold]dsec logs -f bronze-otter[/]
    """
    import time

    from dsec_deployments.cli.output import print_json
    from dsec_deployments.cli.session import session
    from dsec_deployments.runs import find_run

    with session(pool) as s:
        found = find_run(s.prefect, run, pool=s.pool)
        if json:
            print_json(_lines(s.prefect, found["id"]))
            return
        seen: set[str] = set()
        since: str | None = None
        last_look = not follow
        while True:
            for line in _lines(s.prefect, found["id"], since=since):
                if line["id"] not in seen:
                    seen.add(line["id"])
                    since = line["timestamp"]
                    print(_text(line))
            if last_look:
                return
            last_look = s.prefect.get(f"flow_runs/{found['id']}")["state_type"] in TERMINAL
            time.sleep(LAST_WORDS_SECONDS if last_look else POLL_SECONDS)


def _text(line: dict[str, Any]) -> str:
    who = line["name"].removeprefix("dsec.") + ": " if line["name"].startswith("dsec.rank") else ""
    return f"{line['timestamp'][11:23]} {_LEVELS.get(line['level'], line['level']):<8} {who}{line['message']}"


def _lines(api: PrefectApi, run_id: str, *, since: str | None = None) -> list[dict[str, Any]]:
    """The log lines, oldest first; with `since`, those from a little before it, because lines arrive out of order."""
    import datetime

    wanted: dict[str, Any] = {"flow_run_id": {"any_": [run_id]}}
    if since is not None:
        moment = datetime.datetime.fromisoformat(since.replace("Z", "+00:00"))
        wanted["timestamp"] = {"after_": (moment - datetime.timedelta(seconds=LATE_SECONDS)).isoformat()}
    lines: list[dict[str, Any]] = []
    while True:
        page = api.post("logs/filter", {"logs": wanted, "sort": "TIMESTAMP_ASC", "limit": 200, "offset": len(lines)})
        lines += page
        if len(page) < 200:
            return lines
