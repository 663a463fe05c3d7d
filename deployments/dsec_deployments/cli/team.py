"""`dsec team`: who may use how much. A team is a work queue of the pool that the ledger knows."""

from typing import Annotated, Any

import typer

from dsec_blocks.model.errors import DsecError, UnknownTeam
from dsec_blocks.model.gangs import HOLDING_STATES, GangState
from dsec_blocks.model.teams import DEFAULT_TEAM, Team
from dsec_deployments.cli.options import Json, Pool

app = typer.Typer(no_args_is_help=True, help="Who may use how much of the pool.")

Name = Annotated[str, typer.Argument(help="The team's name; its work queue has the same.")]
Quota = Annotated[int | None, typer.Option("--quota", min=0, help="Devices the team may always use.")]
Borrow = Annotated[
    str | None,
    typer.Option("--borrow", help="Devices more it may use while others leave them idle: a number, or 'any'."),
]
Weight = Annotated[float | None, typer.Option("--weight", min=0.001, help="Its share when teams compete.")]
Lend = Annotated[
    str | None,
    typer.Option("--lend", help="Devices of its own that others may use meanwhile: a number, or 'any'."),
]
Parent = Annotated[
    str | None, typer.Option("--parent", help="The team it is part of, whose limits bind it too; 'none' for no team.")
]
UserDevices = Annotated[
    str | None, typer.Option("--user-devices", help="Devices one person may hold in it: a number, or 'any'.")
]
Highest = Annotated[int | None, typer.Option("--highest-priority", min=0, max=1000, help="What its runs may ask for.")]


@app.command(epilog="Example: [bold]dsec team add vision --quota 8 --borrow 4 --weight 2[/]")
def add(
    name: Name,
    quota: Quota = 0,
    borrow: Borrow = "any",
    weight: Weight = 1.0,
    highest_priority: Highest = 100,
    lend: Lend = "any",
    parent: Parent = None,
    user_devices: UserDevices = "any",
    pool: Pool = None,
) -> None:
    """Add a team: a row in the ledger and a work queue in Prefect.

    Limits count on the whole path of a team: with --parent, what its siblings use counts against the parent's limit.
    Who started a run is what Prefect says (accounts exist in Prefect Cloud only), else its tag `user:NAME`.
    """
    from dsec_blocks.model.teams import check_team_name, check_tree
    from dsec_deployments import provisioning
    from dsec_deployments.cli.output import console
    from dsec_deployments.cli.session import session

    check_team_name(name)
    with session(pool) as s:
        teams = s.ledger.teams(s.pool)
        if name in teams and name != DEFAULT_TEAM:
            raise DsecError(f"team {name} exists already; change it with `dsec team set {name} …`")
        team = Team(
            name=name,
            nominal_devices=quota or 0,
            borrow_devices=_devices(borrow, "--borrow"),
            lend_devices=_devices(lend, "--lend"),
            weight=weight or 1.0,
            highest_priority=100 if highest_priority is None else highest_priority,
            parent=_parent(parent),
            user_devices=_devices(user_devices, "--user-devices"),
        )
        check_tree(teams | {name: team})
        provisioning.create_queue(s.prefect, pool=s.pool, team=team)
        s.ledger.put_team(s.pool, team)
        console.print(f"team {name} added: {describe(team)}")


@app.command("set", epilog="Example: [bold]dsec team set vision --quota 12[/]")
def set_(
    name: Name,
    quota: Quota = None,
    borrow: Borrow = None,
    weight: Weight = None,
    highest_priority: Highest = None,
    lend: Lend = None,
    parent: Parent = None,
    user_devices: UserDevices = None,
    pool: Pool = None,
) -> None:
    """Change what a team may use; what is not given stays."""
    import dataclasses

    from dsec_blocks.model.teams import check_tree
    from dsec_deployments import provisioning
    from dsec_deployments.cli.output import console
    from dsec_deployments.cli.session import session

    with session(pool) as s:
        teams = s.ledger.teams(s.pool)
        team = _known(teams, name)
        given = {"nominal_devices": quota, "weight": weight, "highest_priority": highest_priority}
        changes: dict[str, object] = {field: value for field, value in given.items() if value is not None}
        limits = {"borrow_devices": (borrow, "--borrow"), "lend_devices": (lend, "--lend")}
        limits["user_devices"] = (user_devices, "--user-devices")
        changes |= {field: _devices(*said) for field, said in limits.items() if said[0] is not None}
        if parent is not None:
            changes["parent"] = _parent(parent)
        team = dataclasses.replace(team, **changes)  # type: ignore[arg-type]
        check_tree(teams | {name: team})
        provisioning.create_queue(s.prefect, pool=s.pool, team=team)
        s.ledger.put_team(s.pool, team)
        console.print(f"team {name}: {describe(team)}")


@app.command("list", epilog="Example: [bold]dsec team list --json[/]")
def list_(pool: Pool = None, json: Json = False) -> None:
    """Every team with its quota and what it uses now, children below their parents."""
    from dsec_blocks.model.teams import path_to_root
    from dsec_deployments.cli.output import print_json, print_table
    from dsec_deployments.cli.session import session

    with session(pool) as s:
        gangs = s.ledger.gangs(s.pool, {*HOLDING_STATES, GangState.WAITING})
        used = s.ledger.usage(s.pool)
        rows: list[dict[str, Any]] = [
            {
                "team": team.name,
                "quota": team.nominal_devices,
                "parent": team.parent,
                "borrow": team.borrow_devices,
                "lend": team.lend_devices,
                "user_devices": team.user_devices,
                "weight": team.weight,
                "highest_priority": team.highest_priority,
                "devices_held": sum(
                    len(g.placement.devices)
                    for g in gangs
                    if g.team == team.name and g.placement and g.state in HOLDING_STATES
                ),
                "waiting": sum(g.team == team.name and g.state is GangState.WAITING for g in gangs),
                "device_seconds": used.get(team.name, 0.0),
            }
            for team in _as_tree(s.ledger.teams(s.pool))
        ]
        depth = {name: len(list(path_to_root(name, s.ledger.teams(s.pool)))) - 1 for name in s.ledger.teams(s.pool)}
    if json:
        print_json(rows)
        return
    print_table(
        f"Teams of pool {s.pool}",
        ["team", "quota>", "borrow>", "lend>", "weight>", "highest priority>", "holds>", "waiting>", "device-hours>"],
        [
            ["  " * depth[r["team"]] + r["team"], r["quota"], _or_any(r["borrow"]), _or_any(r["lend"])]
            + [f"{r['weight']:g}"]
            + [r["highest_priority"], r["devices_held"], r["waiting"], f"{r['device_seconds'] / 3600:.2f}"]
            for r in rows
        ],
        empty="no teams",
    )


@app.command(epilog="Example: [bold]dsec team remove vision[/]")
def remove(name: Name, pool: Pool = None) -> None:
    """Remove a team that has no runs; its work queue stays in Prefect and holds what is sent to it."""
    from dsec_deployments.cli.output import console
    from dsec_deployments.cli.session import session

    with session(pool) as s:
        _known(s.ledger.teams(s.pool), name)
        if name == DEFAULT_TEAM:
            raise DsecError("team default cannot be removed: runs without a queue belong to it")
        alive = [g for g in s.ledger.gangs(s.pool, set(GangState) - {GangState.ENDED}) if g.team == name]
        if alive:
            raise DsecError(f"team {name} has {len(alive)} runs that have not ended ({alive[0].name}); end them first")
        s.ledger.remove_team(s.pool, name)
        console.print(f"team {name} removed")


def describe(team: Team) -> str:
    """The team's rights in a few words."""
    borrow = "any idle device" if team.borrow_devices is None else f"up to {team.borrow_devices} idle devices"
    more = "" if team.lend_devices is None else f", lends up to {team.lend_devices}"
    more += "" if team.user_devices is None else f", {team.user_devices} a person at most"
    more += "" if team.parent is None else f", part of {team.parent}"
    return (
        f"{team.nominal_devices} devices of its own, borrows {borrow}, weight {team.weight:g}, "
        f"priority up to {team.highest_priority}{more}"
    )


def _as_tree(teams: dict[str, Team]) -> list[Team]:
    """By name, children below their parents."""
    from dsec_blocks.model.teams import path_to_root

    return sorted(teams.values(), key=lambda team: list(reversed(list(path_to_root(team.name, teams)))))


def _or_any(devices: int | None) -> int | str:
    return "any" if devices is None else devices


def _known(teams: dict[str, Team], name: str) -> Team:
    if name not in teams:
        raise UnknownTeam(f"unknown team {name}; teams are {', '.join(sorted(teams))}; add it: dsec team add {name}")
    return teams[name]


def _devices(text: str | None, option: str) -> int | None:
    if text is None or text == "any":
        return None
    if not text.isdigit():
        raise typer.BadParameter(f"{text!r} is neither a number of devices nor 'any'", param_hint=option)
    return int(text)


def _parent(text: str | None) -> str | None:
    return None if text in (None, "none") else text
