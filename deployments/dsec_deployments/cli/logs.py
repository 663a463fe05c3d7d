"""`dsec logs`: what a run printed, from Prefect, so that it works from any machine and after the run."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from dsec_deployments.cli.options import Json, Pool, Run

if TYPE_CHECKING:
    from dsec_deployments.prefect_api import PrefectApi

POLL_SECONDS = 1.0
TERMINAL = frozenset({"COMPLETED", "FAILED", "CRASHED", "CANCELLED"})
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
            print_json(_lines(s.prefect, found["id"], after=0))
            return
        printed = 0
        while True:
            ended = s.prefect.get(f"flow_runs/{found['id']}")["state_type"] in TERMINAL
            for line in _lines(s.prefect, found["id"], after=printed):
                printed += 1
                print(f"{line['timestamp'][11:23]} {_LEVELS.get(line['level'], line['level']):<8} {line['message']}")
            if ended or not follow:
                return
            time.sleep(POLL_SECONDS)


def _lines(api: PrefectApi, run_id: str, *, after: int) -> list[dict[str, Any]]:
    """The log lines from number `after` on, oldest first."""
    lines: list[dict[str, Any]] = []
    body = {"logs": {"flow_run_id": {"any_": [run_id]}}, "sort": "TIMESTAMP_ASC"}
    while True:
        page = api.post("logs/filter", {**body, "limit": 200, "offset": after + len(lines)})
        lines += page
        if len(page) < 200:
            return lines
