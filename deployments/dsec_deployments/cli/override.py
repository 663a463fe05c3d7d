"""`dsec override`: an operator's word on one waiting run, against what the plan would decide."""

from typing import Annotated

import typer

from dsec_deployments.cli.options import Pool, Run, Why


def override(
    run: Run,
    why: Why,
    admit: Annotated[bool, typer.Option("--admit", help="Start it next, whatever its rank and its limits.")] = False,
    hold: Annotated[bool, typer.Option("--hold", help="Keep it waiting until the order is lifted.")] = False,
    lift: Annotated[bool, typer.Option("--lift", help="Let the plan decide again.")] = False,
    pool: Pool = None,
) -> None:
    """Start one waiting run before all others, or keep it waiting.

    An admission counts once: if the run is evicted later, it waits like any other. It evicts by its own rights only.

    Example: [bold]dsec override bronze-otter --admit --why "demo at noon"[/]
    """
    from dsec_blocks.model.errors import InvalidRequest
    from dsec_blocks.model.gangs import GangState
    from dsec_deployments.cli.ordering import order
    from dsec_deployments.cli.session import session
    from dsec_deployments.cli.steer import find_gang

    if admit + hold + lift != 1:
        raise InvalidRequest("--admit, --hold or --lift: one of them says what to do with the run")
    with session(pool) as s:
        gang = find_gang(s, run)
        if lift:
            order(s, "lift", {}, why=why, run_id=gang.run_id, done=f"run {gang.name}: the plan decides again")
            return
        if gang.state is not GangState.WAITING:
            raise InvalidRequest(f"run {gang.name} is {gang.state}; only a waiting run can be {_verb(admit)}")
        done = f"run {gang.name} is " + ("started next" if admit else "kept waiting until `dsec override --lift`")
        order(s, "override", {"admit": admit}, why=why, run_id=gang.run_id, done=done)


def _verb(admit: bool) -> str:
    return "started next" if admit else "kept waiting"
