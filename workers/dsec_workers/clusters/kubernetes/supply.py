"""What the cluster has, and who is on it: nodes for `plan()`, and whether a gang's places are really free.

Two mirrors feed it, nodes and pods. Only nodes on which something changed are worked out anew.
"""

from collections.abc import Iterable
from dataclasses import replace

from dsec_blocks.model.clock import Clock
from dsec_blocks.model.devices import Health, Node
from dsec_blocks.model.gangs import MemberPlacement
from dsec_workers.clusters.kubernetes import device_taints
from dsec_workers.clusters.kubernetes.api import Object
from dsec_workers.clusters.kubernetes.counted import beyond
from dsec_workers.clusters.kubernetes.mirror import key_of as object_key
from dsec_workers.clusters.kubernetes.naming import key_of
from dsec_workers.clusters.kubernetes.node_model import node_model, resource_of, why_closed
from dsec_workers.clusters.kubernetes.occupancy import Requests, is_finished, node_of, taken_by_node
from dsec_workers.clusters.kubernetes.resources import gpu_resource, quantity
from dsec_workers.clusters.kubernetes.settings import KubernetesSettings
from dsec_workers.clusters.protocol import GangKey
from dsec_workers.scheduling.fleet import DeviceClass

FIRST_PENALTY_SECONDS, LONGEST_PENALTY_SECONDS = 30.0, 600.0
OUT_OF_SERVICE = "node.kubernetes.io/out-of-service"


class Supply:
    """Nodes and what pods take of them."""

    def __init__(self, settings: KubernetesSettings, *, clock: Clock) -> None:
        self._settings, self._clock = settings, clock
        self._nodes: dict[str, Object] = {}
        self._pods: dict[str, dict[tuple[str, str], Object]] = {}
        """node → the pods on it"""
        self._beyond: dict[str, dict[tuple[str, str], Requests]] = {}
        """node → what pods of ours there take that the ledger does not count"""
        self._held: dict[str, dict[GangKey, tuple[str, ...]]] = {}
        """node → the places that gangs of ours have there"""
        self._closing: dict[str, set[GangKey]] = {}
        """node → gangs there that were stopped and whose pods are not known to have left"""
        self._penalties: dict[str, tuple[float, float]] = {}
        """node → until when (monotonic) nothing new goes there, and how long that was"""
        self._tainted: dict[str, dict[tuple[str, str], str]] = {}
        """node → by ResourceSlice, the tainted card there"""
        self._models: dict[str, Node] = {}
        self._offers: dict[str, tuple[Object, Requests, list[str], Node]] = {}
        """node → what that was worked out from (the node, foreign use, the places of our gangs if foreign use closes
        others), and what it offers"""
        self._offered: frozenset[str] | None = None
        """The resources of all nodes, once somebody has asked for them."""

    # --- what the mirrors tell ------------------------------------------------------------------------------------

    def node_changed(self, before: Object | None, after: Object | None) -> None:
        """A node came, changed or went."""
        name = (after or before or {})["metadata"]["name"]
        if after is None:
            self._nodes.pop(name, None)
            self._offers.pop(name, None)
        else:
            self._nodes[name] = after
        self._models.pop(name, None)
        self._offered = None

    def pod_changed(self, before: Object | None, after: Object | None) -> None:
        """A pod came, changed or went."""
        gone: Requests | None = None
        for pod, is_there in ((before, False), (after, True)):
            node = node_of(pod) if pod is not None else None
            if pod is None or node is None:
                continue
            on_node, more, key = self._pods.setdefault(node, {}), self._beyond.setdefault(node, {}), object_key(pod)
            if not is_there:
                on_node.pop(key, None)
                gone = more.pop(key, None)
            else:
                on_node[key] = pod
                is_known = before is not None and node_of(before) == node and _uid(before) == _uid(pod)
                taken = gone if is_known else beyond(pod)  # for ever the same: what a pod asks for is not changed
                if taken:
                    more[key] = taken
            self._models.pop(node, None)

    def slice_changed(self, before: Object | None, after: Object | None) -> None:
        """A ResourceSlice came, changed or went."""
        for item, is_there in ((before, False), (after, True)):
            node = device_taints.node_of(item) if item is not None else None
            if item is None or node is None:
                continue
            said = device_taints.tainted(item, tolerations=self._settings.tolerations) if is_there else None
            self._tainted.setdefault(node, {}).pop(object_key(item), None)
            if said is not None:
                self._tainted[node][object_key(item)] = f"{said} (node {node})"
            self._models.pop(node, None)

    # --- what our gangs hold --------------------------------------------------------------------------------------

    def hold(self, key: GangKey, member: MemberPlacement) -> None:
        """A gang of ours is (or is about to be) on these places."""
        self._held.setdefault(member.node, {})[key] = member.devices
        self._models.pop(member.node, None)

    def close(self, key: GangKey, member: MemberPlacement) -> None:
        """A gang was stopped: its places are nobody's until its pods have left."""
        self._closing.setdefault(member.node, set()).add(key)
        self._models.pop(member.node, None)

    def let_go(self, key: GangKey, member: MemberPlacement) -> None:
        """No pod of the gang is left there."""
        self._held.get(member.node, {}).pop(key, None)
        self._closing.get(member.node, set()).discard(key)
        self._models.pop(member.node, None)

    def penalise(self, node: str) -> None:
        """The node's kubelet rejected a pod: nothing new goes there for a while, longer each time."""
        _, last = self._penalties.get(node, (0.0, FIRST_PENALTY_SECONDS / 2))
        span = min(LONGEST_PENALTY_SECONDS, last * 2)
        self._penalties[node] = (self._clock.monotonic() + span, span)
        self._models.pop(node, None)

    def forgive(self, node: str) -> None:
        """A gang has started there."""
        if self._penalties.pop(node, None) is not None:
            self._models.pop(node, None)

    # --- answers --------------------------------------------------------------------------------------------------

    def nodes(self) -> tuple[Node, ...]:
        """All nodes as `plan()` knows nodes."""
        now = self._clock.monotonic()
        for name in [name for name, (until, _) in self._penalties.items() if until <= now and name in self._models]:
            if not self._models[name].schedulable:
                self._models.pop(name)
        return tuple(self._model(name, now) for name in sorted(self._nodes))

    def kinds(self) -> list[tuple[DeviceClass, str]]:
        """The kinds of card there are, each with a resource by whose name pods ask for it."""
        cards = (card for node in self.nodes() for card in node.devices)
        found = {(card.model, card.memory_bytes, card.profile, resource_of(card.uuid)) for card in cards}
        return [
            (DeviceClass(model=model, memory_bytes=memory, profile=profile), resource)
            for model, memory, profile, resource in sorted(found)
        ]

    def lacking(self, key: GangKey, name: str, needs: Requests) -> str | None:
        """What of a member's request node `name` does not have free at this moment; None when all of it is."""
        node = self._nodes.get(name)
        if node is None:
            return f"node {name} does not exist (any more)"
        offered = (node.get("status") or {}).get("allocatable") or {}
        taken = self._taken(name, without=key)
        for resource, wanted in needs.items():
            free = quantity(offered.get(resource, 0)) - taken.get(resource, quantity(0))
            if free < wanted:
                return f"node {name} has {max(quantity(0), free):f} {resource} free, and {wanted:f} are needed there"
        return None

    def unknown(self, needs: Iterable[Requests]) -> str | None:
        """A resource that none of the pool's nodes offers, in words for a person; None when there is no such."""
        if self._offered is None:
            nodes = self._nodes.values()
            self._offered = frozenset(name for n in nodes for name in (n.get("status") or {}).get("allocatable") or {})
        offered = self._offered
        for resource in sorted({name for need in needs for name in need} - offered):
            known = ", ".join(sorted(name for name in offered if "/" in name)) or "none beyond cpu and memory"
            return f"no node offers the resource {resource}; those of the cluster are {known}"
        return None

    def closed(self, node: str) -> str | None:
        """Why no gang may start on the node now; None when one may."""
        found = self._nodes.get(node)
        if found is None:
            return f"node {node} does not exist (any more)"
        return why_closed(found, tolerations=self._settings.tolerations) or self._has_tainted(node)

    def is_fenced(self, node: str) -> bool:
        """Whether what vanished from this node without a last word can no longer be running there.

        A node that answers would report it; one that is deleted or marked out of service was fenced by whoever did so.
        """
        found = self._nodes.get(node)
        if found is None:
            return True
        conditions = {c["type"]: c["status"] for c in (found.get("status") or {}).get("conditions") or ()}
        taints = {taint["key"] for taint in (found.get("spec") or {}).get("taints") or ()}
        return conditions.get("Ready") == "True" or OUT_OF_SERVICE in taints

    def _model(self, name: str, now: float) -> Node:
        model = self._models.get(name)
        if model is None:
            model = self._models[name] = self._worked_out(name, now)
        return model

    def _worked_out(self, name: str, now: float) -> Node:
        holders = self._held.get(name, {})
        foreign = dict(self._taken(name, without=frozenset(holders)))
        for pod_key, more in self._beyond.get(name, {}).items():
            pod = self._pods[name][pod_key]
            if key_of(pod) in holders and not is_finished(pod):
                for resource, amount in more.items():
                    foreign[resource] = foreign.get(resource, quantity(0)) + amount
        held = [place for places in holders.values() for place in places]
        model = self._offer(name, foreign, held)
        return _adjusted(
            model,
            frozen={place for key in self._closing.get(name, ()) for place in holders.get(key, ())},
            is_closed=self._penalties.get(name, (0.0, 0.0))[0] > now or self._has_tainted(name) is not None,
        )

    def _offer(self, name: str, foreign: Requests, held: list[str]) -> Node:
        """What the node offers beside those; the same object as long as that follows from the same."""
        node, settings = self._nodes[name], self._settings
        closing = held if any(gpu_resource(resource) for resource, amount in foreign.items() if amount) else []
        known = self._offers.get(name)
        if known is None or known[0] is not node or known[1] != foreign or known[2] != closing:
            model = node_model(
                node,
                foreign=foreign,
                held=held,
                tolerations=settings.tolerations,
                topology_labels=settings.topology_labels,
            )
            known = self._offers[name] = (node, foreign, closing, model)
        return known[3]

    def _has_tainted(self, node: str) -> str | None:
        return next(iter(self._tainted.get(node, {}).values()), None)

    def _taken(self, node: str, *, without: GangKey | frozenset[GangKey]) -> Requests:
        left_out = without if isinstance(without, frozenset) else {without}
        pods = [pod for pod in self._pods.get(node, {}).values() if not left_out or key_of(pod) not in left_out]
        return taken_by_node(pods).get(node, {})


def _uid(pod: Object) -> str:
    return str(pod["metadata"].get("uid"))


def _adjusted(model: Node, *, frozen: set[str], is_closed: bool) -> Node:
    if frozen:
        devices = tuple(replace(d, health=Health.FROZEN) if d.uuid in frozen else d for d in model.devices)
        model = replace(model, devices=devices)
    return replace(model, schedulable=False) if is_closed else model
