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
from typing import Any

from dsec_blocks.ledger import Arrivals, Ledger
from dsec_blocks.model.bulk import nothing_is_garbage
from dsec_blocks.model.devices import Device, Health, Node
from dsec_blocks.model.errors import InvalidRequest, UnknownTeam
from dsec_blocks.model.gangs import Gang, GangState
from dsec_blocks.model.reasons import Reason
from dsec_blocks.model.requests import GangRequest
from dsec_blocks.model.teams import Team
from dsec_workers.lifecycle import incidents
from dsec_workers.lifecycle.admission_checks import AdmissionChecks, checks_as_told
from dsec_workers.lifecycle.data_distance import NOTHING_KNOWN, DataDistance
from dsec_workers.lifecycle.mirror import view_of
from dsec_workers.lifecycle.orders import standing
from dsec_workers.lifecycle.plan_input import Line, facts_of, snapshot_of
from dsec_workers.lifecycle.records import NOBODY_ARRIVED, queued, seen
from dsec_workers.lifecycle.rules import active_policy
from dsec_workers.scheduling.cycle import plan
from dsec_workers.scheduling.decisions import Admit, Hold, Plan, Recall, Shadow
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
    refused: tuple[Hold, ...] = ()
    """Who is not planned at all: a pause or a run limit of Prefect's keeps them out."""
    checks: AdmissionChecks | None = None
    """What Prefect's pauses and run limits let through; None where they are not known."""

    def plan(self, *more: QueuedGang) -> Plan:
        """The next plan, if these were waiting too."""
        with nothing_is_garbage():
            return plan(self.snapshot, [*self.waiting, *more], self.policy, self.now)

    @property
    def unknown(self) -> tuple[str, ...]:
        """What the leader would heed beside this, and nobody here can tell."""
        found = [] if self.checks is not None else ["pauses and run limits set in Prefect"]
        if any("kubernetes.io/hostname" in node.labels for node in self.snapshot.fleet.source):
            found.append("quotas and limit ranges of the namespaces that gangs run in")
        return tuple(found)


@dataclass(frozen=True, kw_only=True)
class Answer:
    """What would become of one imagined gang: `admit` if it would start (or be promised devices) now, else `hold`."""

    admit: Admit | None
    hold: Hold | None
    shadow: Shadow | None
    """Where it would start later, if it were the head of its line."""
    conditional_until: float | None
    """Until when it might stay, if it passed the head of the line on condition."""
    unknown: tuple[str, ...] = ()
    """What the leader would heed beside this, and nobody here can tell."""
    recalls: tuple[Recall, ...] = ()
    """Who would be told to leave for it while it waits."""


def present(ledger: Ledger, pool: str, *, now: float, checks: Mapping[str, Any] | None = None) -> Present:
    """The pool as its ledger tells it, with the policy that it plans by and all that operators have ordered.

    `checks` is what Prefect says of pauses and run limits (`checks_as_told`); without it they are not known.
    """
    with nothing_is_garbage():
        return _present(ledger, pool, now=now, checks=checks)


def _present(ledger: Ledger, pool: str, *, now: float, checks: Mapping[str, Any] | None) -> Present:
    policy, nodes, view = active_policy(ledger, pool), ledger.nodes(pool), view_of(ledger.whole(pool))
    orders = standing(ledger.wishes(pool), nodes, now)
    facts = facts_of(ledger, pool, now=now, policy=policy, nodes=nodes, view=view, orders=orders)
    data = DataDistance(ledger.inventories(), nodes=nodes, now=now)
    through = None if checks is None else checks_as_told(pool, checks, view.gangs.values())
    queue, refused = Line().queue(view, through or AdmissionChecks(), now=now, data=data)
    return Present(
        snapshot=snapshot_of(facts),
        waiting=tuple(queue),
        refused=tuple(refused),
        data=data,
        arrivals=facts.arrivals,
        policy=policy,
        now=now,
        checks=through,
        names={gang.run_id: gang.name for gang in view.gangs.values()},
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
        checks=found.checks,
        names={gang.run_id: gang.name for gang in found.gangs},
    )


def holds(ledger: Ledger, pool: str, *, now: float, checks: Mapping[str, Any] | None = None) -> dict[str, Hold]:
    """By run: why each waiting gang waits, its place, its estimate and its factors."""
    there = present(ledger, pool, now=now, checks=checks)
    return {hold.run_id: hold for hold in (*there.refused, *there.plan().holds)}


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
    closed = present.checks.of_team(gang.team) if present.checks is not None else None
    if closed is not None:
        kept_out = Hold(run_id=gang.run_id, reason=closed)
        return Answer(admit=None, hold=kept_out, shadow=None, conditional_until=None, unknown=present.unknown)
    # An estimate for everybody: it decides nothing, and this gang may be far back.
    snapshot = present.snapshot.apply(seen=seen(present.arrivals.after([gang.request])))
    asked = replace(present, snapshot=snapshot, policy=replace(present.policy, eta_positions=EVERYBODY))
    saved = present.data.seconds_saved(gang.request.inputs)
    result = asked.plan(queued(gang, seconds_saved=saved, now=present.now))
    admit = next((admit for admit in result.admits if admit.run_id == gang.run_id), None)
    hold = next((hold for hold in result.holds if hold.run_id == gang.run_id), None)
    if admit is not None and present.checks is not None:
        late = present.checks.refused_after(result.admits, gang, {each.run_id: each.team for each in present.waiting})
        if late is not None:
            admit, hold = None, Hold(run_id=gang.run_id, reason=late)
    return Answer(
        admit=admit,
        hold=hold,
        shadow=next((shadow for shadow in result.shadows if shadow.run_id == gang.run_id), None),
        conditional_until=result.conditional.get(gang.run_id) if admit is not None else None,
        unknown=present.unknown,
        recalls=tuple(recall for recall in result.recalls if recall.for_run == gang.run_id),
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
