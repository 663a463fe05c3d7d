"""What the next plan would say: the same `plan()` over the ledger as it is now, carried out by nobody.

Positions, estimates and factors change with every cycle and are not stored; whoever wants to see them plans. So does
whoever asks what would become of a gang that is not there yet, or of the waiting if there were more nodes.
"""

import dataclasses
import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from dsec_blocks.ledger import Arrivals, Ledger
from dsec_blocks.model.bulk import nothing_is_garbage
from dsec_blocks.model.devices import Device, Health, Node
from dsec_blocks.model.errors import InvalidRequest, UnknownTeam
from dsec_blocks.model.gangs import HOLDING_STATES, Gang, GangState
from dsec_blocks.model.reasons import Reason
from dsec_blocks.model.requests import GangRequest
from dsec_blocks.model.teams import Team
from dsec_workers.lifecycle import incidents
from dsec_workers.lifecycle.data_distance import NOTHING_KNOWN, DataDistance
from dsec_workers.lifecycle.orders import standing
from dsec_workers.lifecycle.records import NOBODY_ARRIVED, queued, seen, snapshot_of
from dsec_workers.lifecycle.rules import active_policy
from dsec_workers.scheduling.cycle import plan
from dsec_workers.scheduling.decisions import Admit, Hold, Plan, Shadow
from dsec_workers.scheduling.policy import Policy
from dsec_workers.scheduling.snapshot import QueuedGang, Snapshot, build_snapshot

NEWCOMER = "what-if"
"""The run id of a gang that is only imagined."""
EVERYBODY = 1_000_000


@dataclass(frozen=True, kw_only=True)
class Present:
    """Everything that a plan depends on, at one instant."""

    snapshot: Snapshot
    waiting: tuple[QueuedGang, ...]
    policy: Policy
    now: float
    names: Mapping[str, str] = dataclasses.field(default_factory=dict)
    """Run id → name, for people."""
    data: DataDistance = NOTHING_KNOWN
    """What the nodes' caches hold."""
    arrivals: Arrivals = NOBODY_ARRIVED
    """What has arrived so far."""

    def plan(self, *more: QueuedGang) -> Plan:
        """The next plan, if these were waiting too."""
        return plan(self.snapshot, [*self.waiting, *more], self.policy, self.now)


@dataclass(frozen=True, kw_only=True)
class Answer:
    """What would become of one imagined gang: `admit` if it would start (or be promised devices) now, else `hold`."""

    admit: Admit | None
    hold: Hold | None
    shadow: Shadow | None
    """Where it would start later, if it were the head of its line."""
    conditional_until: float | None
    """Until when it might stay, if it passed the head of the line on condition."""


def present(ledger: Ledger, pool: str, *, now: float) -> Present:
    """The pool as its ledger tells it, with the policy that it plans by and all that operators have ordered."""
    with nothing_is_garbage():
        return _present(ledger, pool, now=now)


def _present(ledger: Ledger, pool: str, *, now: float) -> Present:
    policy = active_policy(ledger, pool)
    nodes, preemptors = ledger.nodes(pool), ledger.preemptors(pool)
    gangs = ledger.gangs(pool, {*HOLDING_STATES, GangState.LEAVING, GangState.WAITING})
    half_life, weights = policy.usage_half_life_seconds, policy.model_weights
    arrivals = ledger.arrivals(pool)
    snapshot = snapshot_of(
        pool=pool,
        nodes=nodes,
        gangs=gangs,
        holdings=ledger.holders(pool),
        evictions=ledger.evictions(pool),
        teams=ledger.teams(pool),
        usage=ledger.decayed_usage(pool, now, half_life_seconds=half_life, model_weights=weights),
        shadows=ledger.shadows(pool),
        orders=standing(ledger.wishes(pool), nodes, now),
        arrivals=arrivals,
    )
    data = DataDistance(ledger.inventories(), nodes=nodes, now=now)
    return Present(
        snapshot=snapshot,
        waiting=tuple(
            queued(gang, preemptors.get(gang.run_id, ()), data.seconds_saved(gang.request.inputs))
            for gang in gangs
            if gang.state is GangState.WAITING
        ),
        data=data,
        arrivals=arrivals,
        policy=policy,
        now=now,
        names={gang.run_id: gang.name for gang in gangs},
    )


def captured(path: Path) -> Present:
    """The pool as an incident file has captured it. Raises `InvalidRequest` for a file that is none."""
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise InvalidRequest(f"{path} cannot be read ({error.strerror})") from None
    except (ValueError, UnicodeDecodeError):
        raise InvalidRequest(f"{path}: this is no incident file; `dsec incident capture FILE` writes one") from None
    found = incidents.load(document, file=str(path))
    return Present(
        snapshot=found.snapshot,
        waiting=found.queue,
        policy=found.policy,
        now=found.now,
        data=found.data,
        arrivals=found.arrivals,
        names={gang.run_id: gang.name for gang in found.gangs},
    )


def holds(ledger: Ledger, pool: str, *, now: float) -> dict[str, Hold]:
    """By run: why each waiting gang waits, its place, its estimate and its factors."""
    return {hold.run_id: hold for hold in present(ledger, pool, now=now).plan().holds}


def newcomer(request: GangRequest, *, team: str, now: float) -> Gang:
    """A run that Prefect would make now, as the ledger would know it."""
    return Gang(
        run_id=NEWCOMER,
        name=NEWCOMER,
        pool="",
        team=team,
        request=request,
        state=GangState.WAITING,
        submitted_at=now,
        eligible_at=now,
    )


def what_if(present: Present, gang: Gang) -> Answer:
    """What the next plan would decide about a gang that arrives now. Nothing is changed, nobody is told.

    Raises `UnknownTeam` for a team that the pool does not have.
    """
    teams = present.snapshot.teams
    if gang.team not in teams:
        raise UnknownTeam(
            f"unknown team {gang.team}; teams are {', '.join(sorted(teams))}; `dsec team add {gang.team}`"
        )
    # An estimate for everybody: it decides nothing, and this gang may be far back.
    snapshot = present.snapshot.apply(seen=seen(present.arrivals.after([gang.request])))
    asked = replace(present, snapshot=snapshot, policy=replace(present.policy, eta_positions=EVERYBODY))
    result = asked.plan(queued(gang, seconds_saved=present.data.seconds_saved(gang.request.inputs)))
    return Answer(
        admit=next((admit for admit in result.admits if admit.run_id == gang.run_id), None),
        hold=next((hold for hold in result.holds if hold.run_id == gang.run_id), None),
        shadow=next((shadow for shadow in result.shadows if shadow.run_id == gang.run_id), None),
        conditional_until=result.conditional.get(gang.run_id),
    )


def with_more_nodes(present: Present, count: int) -> tuple[Present, Node]:
    """The same pool with `count` more nodes like the kind it has most of; also one of them.

    Raises `InvalidRequest` for a pool without nodes.
    """
    nodes = present.snapshot.fleet.source
    if not nodes:
        raise InvalidRequest("--add-nodes: the pool has no node yet, so there is none to add another like")
    kinds = Counter(_kind(node) for node in nodes)
    likeness = min(nodes, key=lambda node: (-kinds[_kind(node)], node.name))
    taken = {node.name for node in nodes}
    names = (f"added-{number}" for number in range(1, count + len(nodes) + 1))
    added = [_like(likeness, name) for name in names if name not in taken][:count]
    return replace(present, snapshot=present.snapshot.apply(nodes=[*nodes, *added])), likeness


def reason_if_alone(request: GangRequest, *, team: Team, nodes: Sequence[Node]) -> Reason | None:
    """Why a gang would wait even if nobody else were there; None if it would start."""
    snapshot = build_snapshot(nodes=nodes, running=(), teams={team.name: team}, pool="")
    alone = QueuedGang(run_id="alone", team=team.name, request=request, submitted_at=0.0, eligible_at=0.0)
    for hold in plan(snapshot, [alone], Policy(), 0.0).holds:
        return hold.reason
    return None


def _kind(node: Node) -> tuple[tuple[str, int], ...]:
    return tuple(sorted((device.model, device.memory_bytes) for device in node.devices))


def _like(node: Node, name: str) -> Node:
    """A healthy node of the same kind; what was one NVLink domain on the old node is one on the new."""

    def device(old: Device) -> Device:
        domain = f"{name}:{old.nvlink_domain}" if old.nvlink_domain else ""
        return replace(old, uuid=f"{name}/{old.index}", node=name, nvlink_domain=domain, health=Health.HEALTHY)

    return replace(node, name=name, schedulable=True, devices=tuple(device(old) for old in node.devices))
