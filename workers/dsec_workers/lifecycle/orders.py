"""What operators have ordered and not taken back: freezes, drains, reserved windows, and a word on single runs.

An order is a wish that stays open in the ledger for as long as it is to hold, so it outlives every worker and carries
who wanted it and why. This module only says what open wishes mean; it is pure, and `dsec pool` reads them the same way.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from math import inf

from dsec_blocks.ledger import Wish
from dsec_blocks.model.devices import Node
from dsec_blocks.model.gangs import Gang, GangState
from dsec_workers.scheduling.policy import Policy
from dsec_workers.scheduling.snapshot import Frozen, Override
from dsec_workers.scheduling.withheld import Withheld

FREEZE_SCOPES = ("all", "team", "node")


@dataclass(frozen=True, slots=True, kw_only=True)
class Drain:
    """A node that is to be empty, at once or by `deadline`."""

    node: str
    deadline: float | None
    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Orders:
    """All that stands at one instant."""

    frozen: Frozen = field(default_factory=Frozen)
    drains: tuple[Drain, ...] = ()
    windows: tuple[Withheld, ...] = ()
    withheld: tuple[Withheld, ...] = ()
    """The windows, and the nodes to be drained by a deadline that has not come."""
    overrides: Mapping[str, Override] = field(default_factory=dict)
    to_admit: Mapping[str, int] = field(default_factory=dict)
    """Run id → the wish to start it, answered once it has been admitted."""
    over: tuple[tuple[int, str], ...] = ()
    """Wishes that have nothing left to hold: (id, what became of them)."""

    def __bool__(self) -> bool:
        return bool(self.drains or self.withheld or self.overrides or self.frozen != Frozen())


def standing(wishes: Iterable[Wish], nodes: Sequence[Node], now: float) -> Orders:
    """What the open wishes mean at `now`."""
    wishes = list(wishes)
    if not wishes:
        return Orders()
    everything: str | None = None
    teams: dict[str, str] = {}
    closed: dict[str, str] = {}
    drains: list[Drain] = []
    windows: list[Withheld] = []
    draining: list[Withheld] = []
    overrides: dict[str, Override] = {}
    to_admit: dict[str, int] = {}
    over: list[tuple[int, str]] = []
    devices = {node.name: frozenset(device.uuid for device in node.devices) for node in nodes}
    for wish in wishes:
        said = f"by {wish.by}" + (f": {wish.why}" if wish.why else "")
        match wish.kind:
            case "freeze":
                scope, name = wish.args.get("scope"), str(wish.args.get("name") or "")
                if scope == "all":
                    everything = everything or f"frozen {said}"
                elif scope == "team":
                    teams.setdefault(name, f"frozen {said}")
                elif scope == "node":
                    closed.setdefault(name, f"frozen {said}")
            case "drain" if not wish.args.get("undo") and wish.args.get("node"):
                node, deadline = str(wish.args["node"]), wish.args.get("deadline")
                drains.append(Drain(node=node, deadline=deadline, why=f"Node {node} is being drained: {wish.why}"))
                if deadline is None or deadline <= now:
                    closed[node] = f"{node} is being drained {said}"
                else:
                    draining.append(
                        Withheld(
                            name=f"drain of {node}",
                            devices=devices.get(node, frozenset()),
                            start=float(deadline),
                            conditional=False,
                            text=f"{node} is drained {said}",
                        )
                    )
            case "reserve":
                if float(wish.args["end"]) <= now:
                    over.append((wish.id, "over"))
                else:
                    windows.append(_window(wish, said))
            case "override" if wish.run_id is not None:
                admit = bool(wish.args.get("admit"))
                overrides[wish.run_id] = Override(admit=admit, text=said)
                to_admit.pop(wish.run_id, None)
                if admit:
                    to_admit[wish.run_id] = wish.id
    return Orders(
        frozen=Frozen(everything=everything, teams=teams, nodes=closed),
        drains=tuple(drains),
        windows=tuple(windows),
        withheld=(*windows, *draining),
        overrides=overrides,
        to_admit=to_admit,
        over=tuple(over),
    )


def _window(wish: Wish, said: str) -> Withheld:
    teams, tags = wish.args.get("teams") or (), wish.args.get("tags") or ()
    for_whom = [f"team {name}" for name in teams] + [f"runs tagged {tag}" for tag in tags]
    return Withheld(
        name=f"reservation {wish.id}",
        devices=frozenset(wish.args.get("devices") or ()),
        start=float(wish.args["start"]),
        end=float(wish.args["end"]),
        teams=frozenset(teams),
        tags=frozenset(tags),
        text=f"reserved for {' and '.join(for_whom) or 'nobody'} {said}",
    )


def must_leave(orders: Orders, gangs: Iterable[Gang], policy: Policy, now: float) -> dict[str, list[str]]:
    """Why → run ids of gangs that have to be asked to leave now, so that they are gone when an order wants them gone.

    Asked at the latest moment that leaves room for their checkpoint and their whole grace. A gang whose enforced
    max_runtime ends in time is left alone. Who drains a node means everybody on it; a reserved window evicts only what
    may be evicted.
    """
    found: dict[str, list[str]] = {}
    if not orders.drains and not orders.windows:
        return found
    for gang in gangs:
        if gang.placement is None or gang.state not in (GangState.LAUNCHING, GangState.RUNNING):
            continue
        on = {member.node for member in gang.placement.members}
        held = frozenset(gang.placement.devices)
        checkpoint = policy.checkpoint_seconds if gang.checkpoint_seconds is None else gang.checkpoint_seconds
        latest = now + checkpoint + gang.request.grace_seconds
        limit = gang.request.max_runtime_seconds
        ends = inf if limit is None or gang.launched_at is None else gang.launched_at + limit
        for drain in orders.drains:
            due = drain.deadline is None or (latest >= drain.deadline and ends > drain.deadline)
            if drain.node in on and due:
                found.setdefault(drain.why, []).append(gang.run_id)
        for window in orders.windows:
            if held.isdisjoint(window.devices) or window.entitled(gang.team, gang.tags) or not gang.request.evictable:
                continue
            if latest >= window.start and ends > window.start:
                found.setdefault(f"The devices are {window.text}", []).append(gang.run_id)
    return found


def choose_devices(
    nodes: Sequence[Node],
    count: int,
    *,
    model: str | None,
    taken: Iterable[str],
    busy: Iterable[str],
) -> list[str]:
    """Devices for a window: whole nodes before parts, idle before busy, none that another window has. Short if few."""
    unavailable, held = set(taken), set(busy)
    found: list[str] = []
    left = count
    offers: list[tuple[int, int, str, list[str]]] = []
    for node in nodes:
        if not node.schedulable:
            continue
        mine = [d.uuid for d in node.devices if d.uuid not in unavailable and model in (None, d.model)]
        offers.append((sum(uuid in held for uuid in mine), -len(mine), node.name, mine))
    for _, _, _, mine in sorted(offers):
        if left <= 0:
            break
        some = sorted(mine, key=lambda uuid: (uuid in held, mine.index(uuid)))[:left]
        found += some
        left -= len(some)
    return found
