"""What namespaces leave for gangs: asked before a gang is admitted, so that none is refused pod by pod.

A quota counts pods that exist; gangs that are admitted and whose pods do not exist yet are counted here on top. What
gangs hold that the asking one may evict stands in nobody's way until it is known that they do not leave for it: the
planner then chose free cards instead, and the asking one waits until the quota has changed.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from decimal import Decimal
from typing import Any

from dsec_blocks.model.gangs import HOLDING_STATES, Gang, GangState, Placement
from dsec_blocks.model.reasons import Reason, ReasonCode
from dsec_workers.clusters.kubernetes import limit_ranges, quotas
from dsec_workers.clusters.kubernetes.occupancy import Requests

Object = dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Rules:
    """What is in force in one namespace."""

    quotas: tuple[Object, ...] = ()
    ranges: tuple[Object, ...] = ()

    @property
    def version(self) -> str:
        """Changes whenever a quota does."""
        return ",".join(quota["metadata"]["resourceVersion"] for quota in self.quotas)


@dataclass(frozen=True, slots=True, kw_only=True)
class Member:
    """What each member of a gang is in its namespace: its pod, defaults filled in, and what quotas count for it."""

    namespace: str
    pod: Object
    charge: Requests


@dataclass(kw_only=True)
class Allowance:
    """Fulfils `dsec_workers.clusters.protocol.Allowance`; good for one cycle."""

    rules: Mapping[str, Rules]
    gangs: Mapping[str, Gang]
    members: Callable[[Gang], Sequence[Member]]
    """What a member of the gang is: one where it was placed, else one for each kind of card that could serve it."""
    seen: Callable[[Gang], int]
    """How many of the gang's pods exist, or have existed."""
    refused: dict[str, str]
    """Run id → the version of its namespace's quotas at which an admission came to nothing; kept between cycles."""
    _taken: dict[str, Requests] = field(default_factory=dict)
    _coming: dict[str, Requests] | None = None
    _softer: dict[tuple[str, str, int], Requests] = field(default_factory=dict)

    def reason(self, gang: Gang) -> Reason | None:
        """Why the gang may not be admitted now; None when it may."""
        found: list[Reason] = []
        for member in self.members(gang):
            rules = self.rules.get(member.namespace)
            why = None if rules is None else self._why_not(gang, member, rules)
            if why is None:
                return None
            found.append(why)
        return found[0] if found else None

    def take(self, gang: Gang, placement: Placement, leaving: Collection[str]) -> bool:
        """Count the gang's pods, if the quotas have room for them once those that leave for it have left."""
        member = next(iter(self.members(replace(gang, placement=placement))), None)
        rules = None if member is None else self.rules.get(member.namespace)
        if member is None or rules is None:
            return True
        needed, besides = _times(member.charge, len(placement.members)), self._besides(member.namespace)
        for run_id in leaving:
            if run_id in self.gangs:
                _add(besides, self._held(self.gangs[run_id], member.namespace), sign=-1)
        if any(quotas.shortage(quota, needed, besides) for quota in quotas.counting(member.pod, rules.quotas)):
            self.refused[gang.run_id] = rules.version
            return False
        self.refused.pop(gang.run_id, None)
        _add(self._taken.setdefault(member.namespace, {}), needed)
        return True

    def _why_not(self, gang: Gang, member: Member, rules: Rules) -> Reason | None:
        request, where = gang.request, f"namespace {member.namespace}"
        refused = limit_ranges.refusal(member.pod, rules.ranges)
        if refused is not None:
            return Reason(code=ReasonCode.NEVER_FITS, text=f"{where}: {refused}")
        needed = _times(member.charge, request.min_nodes or request.nodes)
        for quota in quotas.counting(member.pod, rules.quotas):
            name = quota["metadata"]["name"]
            unsaid = quotas.unsaid(member.pod, quota)
            if unsaid is not None:
                text = f"{where}: quota {name} wants every pod to say {unsaid}; ask for cpus and memory, or set it in"
                return Reason(code=ReasonCode.NEVER_FITS, text=f"{text} the pool's job manifest")
            short = quotas.shortage(quota, needed, self._besides(member.namespace))
            if short is None:
                continue
            text = f"needs {request.describe()}; {where}, quota {name}: {short}"
            if short.is_for_ever:
                return Reason(code=ReasonCode.NEVER_FITS, text=text)
            if self.refused.get(gang.run_id) == rules.version or quotas.shortage(
                quota, needed, self._without_weaker(gang, member.namespace)
            ):
                return Reason(code=ReasonCode.WAITS_FOR_QUOTA, text=text)
        return None

    def _besides(self, namespace: str) -> Requests:
        """What is used though no quota has counted it yet: pods on their way, and this cycle's admissions."""
        if self._coming is None:
            self._coming = {}
            for gang in self.gangs.values():
                if gang.state not in _CREATING or gang.placement is None:
                    continue
                missing = len(gang.placement.members) - self.seen(gang)
                for member in self.members(gang)[:1] if missing > 0 else ():
                    _add(self._coming.setdefault(member.namespace, {}), _times(member.charge, missing))
        found = dict(self._coming.get(namespace, {}))
        _add(found, self._taken.get(namespace, {}))
        return found

    def _without_weaker(self, gang: Gang, namespace: str) -> Requests:
        """The same, without what gangs hold that the planner might evict for this one."""
        key = namespace, gang.team, gang.request.priority
        if key not in self._softer:
            found = self._besides(namespace)
            for other in self.gangs.values():
                if _may_leave_for(gang, other):
                    _add(found, self._held(other, namespace), sign=-1)
            self._softer[key] = found
        return self._softer[key]

    def _held(self, gang: Gang, namespace: str) -> Requests:
        """What a gang's pods take of the namespace's quotas, those on their way included."""
        if gang.placement is None or gang.state not in HOLDING_STATES:
            return {}
        for member in self.members(gang)[:1]:
            if member.namespace == namespace:
                return _times(member.charge, len(gang.placement.members))
        return {}


_CREATING = frozenset({GangState.RESERVED, GangState.LAUNCHING, GangState.RUNNING})


def _may_leave_for(gang: Gang, other: Gang) -> bool:
    """Whether the planner might evict `other` for `gang`; what it may not, it will not."""
    if other.state not in HOLDING_STATES or not other.request.evictable:
        return False
    return other.request.priority < gang.request.priority or other.team != gang.team


def _times(each: Mapping[str, Decimal], count: int) -> Requests:
    return {name: amount * count for name, amount in each.items()}


def _add(to: Requests, more: Mapping[str, Decimal], *, sign: int = 1) -> None:
    for name, amount in more.items():
        to[name] = to.get(name, Decimal(0)) + sign * amount
