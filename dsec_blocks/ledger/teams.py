"""Teams of a pool: the work queues that may hold devices, with quota, weight, highest priority and parent."""

import math

import sqlalchemy as sa

from dsec_blocks.ledger import schema
from dsec_blocks.ledger.rows import upsert
from dsec_blocks.ledger.transaction import Transactions
from dsec_blocks.model.errors import InvalidRequest, LedgerError, UnknownTeam
from dsec_blocks.model.teams import DEFAULT_TEAM, Team, check_team_name, check_tree, children_of

_teams = schema.teams
_devices = schema.devices


class Teams(Transactions):
    """Written by the command line, read by the leader each cycle."""

    def teams(self, pool: str) -> dict[str, Team]:
        """Teams of `pool` by name.

        `default` is always one. Until it is set it is entitled to the devices that no other team is, and borrows
        whatever is idle, so that a pool without teams needs none.
        """
        columns = [column for column in _teams.c if column.name != "pool"]
        with self.reading() as connection:
            rows = connection.execute(sa.select(*columns).where(_teams.c.pool == pool).order_by(_teams.c.name))
            known = {row["name"]: Team(**row) for row in rows.mappings()}
            if DEFAULT_TEAM in known:
                return known
            cut = sa.select(_devices.c.slice_of).where(_devices.c.pool == pool, _devices.c.slice_of != "")
            usable = (_devices.c.pool == pool, _devices.c.uuid.not_in(cut))
            count = sa.select(sa.func.count()).select_from(_devices).where(*usable)
            devices = connection.execute(count).scalar_one()
        left = max(0, devices - sum(team.nominal_devices for team in known.values()))
        return {DEFAULT_TEAM: Team(name=DEFAULT_TEAM, nominal_devices=left)} | known

    def put_team(self, pool: str, team: Team) -> None:
        """Add `team`, or replace what is known of it.

        Raises `LedgerError` for a quota or weight that means nothing, `InvalidRequest` for a name or a parent that
        cannot be.
        """
        _check(team)
        values = {column.name: getattr(team, column.name) for column in _teams.c if column.name != "pool"}
        with self.transaction(at="ledger.put_team") as connection:
            check_tree(self.teams(pool) | {team.name: team})
            upsert(connection, _teams, [{"pool": pool, **values}])

    def remove_team(self, pool: str, name: str) -> None:
        """Forget a team; its waiting runs are then held as those of an unknown team.

        Raises `UnknownTeam`, naming the teams there are, and `InvalidRequest` for a team that others are part of.
        """
        with self.transaction(at="ledger.remove_team") as connection:
            children = children_of(name, self.teams(pool).values())
            if children:
                raise InvalidRequest(
                    f"team {name} is the parent of {', '.join(children)}; move them first: "
                    f"`dsec team set {children[0]} --parent none`"
                )
            gone = connection.execute(sa.delete(_teams).where(_teams.c.pool == pool, _teams.c.name == name))
            if gone.rowcount == 0:
                known = ", ".join(sorted(self.teams(pool)))
                raise UnknownTeam(f"team {name!r} is not in pool {pool}; its teams are {known}")


def _check(team: Team) -> None:
    def refuse(what: str) -> None:
        raise LedgerError(f"team {team.name!r}: {what}")

    if not team.name.strip():
        refuse("a team needs a name: that of its work queue")
    check_team_name(team.name)
    if team.nominal_devices < 0:
        refuse(f"nominal_devices is {team.nominal_devices}; it is a number of devices, 0 or more")
    for name in ("borrow_devices", "lend_devices", "user_devices"):
        devices = getattr(team, name)
        if devices is not None and devices < 0:
            refuse(f"{name} is {devices}; it is 0 or more, or none for no limit")
    if not 0 < team.weight < math.inf:
        refuse(f"weight is {team.weight}; it is more than 0")
    if team.highest_priority < 0:
        refuse(f"highest_priority is {team.highest_priority}; it is 0 or more")
