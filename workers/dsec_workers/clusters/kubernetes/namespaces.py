"""The namespaces that gangs run in: their quotas and limit ranges, and what a gang's pods would be there.

The pool's own namespace is followed from the start, others from the moment in which a run names them.
"""

import asyncio
import json
import logging
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from dsec_blocks.model.clock import Clock
from dsec_blocks.model.errors import ClusterError
from dsec_blocks.model.gangs import Gang, MemberPlacement, Placement
from dsec_workers.clusters.kubernetes import limit_ranges, quotas
from dsec_workers.clusters.kubernetes.allowance import Allowance, Member, Rules
from dsec_workers.clusters.kubernetes.api import Api, Object
from dsec_workers.clusters.kubernetes.errors import Forbidden
from dsec_workers.clusters.kubernetes.gang_jobs import missing_permission
from dsec_workers.clusters.kubernetes.manifest import jobs_of
from dsec_workers.clusters.kubernetes.mirror import Mirror
from dsec_workers.clusters.kubernetes.node_model import place, resource_of
from dsec_workers.clusters.kubernetes.roster import Roster
from dsec_workers.clusters.kubernetes.settings import KubernetesSettings
from dsec_workers.clusters.kubernetes.supply import Supply
from dsec_workers.clusters.protocol import GangKey, LaunchOrder

_log = logging.getLogger(__name__)
KINDS = ("resourcequotas", "limitranges")
AGAIN_SECONDS = 30.0
"""After this long a namespace whose rules could not be read is asked for them again."""
_ANYWHERE = "any"
"""The node of a member that is not placed yet."""
_MOST_REMEMBERED = 10_000


class Namespaces:
    """Rules by namespace, and the allowance of one cycle made of them."""

    def __init__(self, api: Api, settings: KubernetesSettings, *, supply: Supply, roster: Roster, clock: Clock) -> None:
        self._api, self._settings, self._supply, self._roster = api, settings, supply, roster
        self._clock = clock
        self._mirrors: dict[str, list[Mirror]] = {}
        self._opening: dict[str, asyncio.Task[None]] = {}
        self._members: dict[object, Member] = {}
        self._texts: dict[int, tuple[object, str]] = {}
        self._refused: dict[str, str] = {}

    async def follow(self, namespace: str) -> None:
        """Follow a namespace's rules from now on.

        Raises `ClusterError` when they may not be read: which permission is missing.
        """
        paths = [f"/api/v1/namespaces/{namespace}/{kind}" for kind in KINDS]
        mirrors = [Mirror(self._api, path, clock=self._clock) for path in paths]
        for kind, mirror in zip(KINDS, mirrors, strict=True):
            try:
                await mirror.start()
            except BaseException as error:
                await asyncio.gather(*(each.stop() for each in mirrors))
                if isinstance(error, Forbidden):
                    raise ClusterError(missing_permission(error, f"list,watch {kind}", namespace)) from error
                raise
        self._mirrors[namespace] = mirrors

    @property
    def mirrors(self) -> list[Mirror]:
        """Of all namespaces."""
        return [mirror for mirrors in self._mirrors.values() for mirror in mirrors]

    async def close(self) -> None:
        """Stop following."""
        for task in self._opening.values():
            task.cancel()
        await asyncio.gather(*self._opening.values(), return_exceptions=True)
        await asyncio.gather(*(mirror.stop() for mirror in self.mirrors))
        self._mirrors.clear()

    def rules(self, namespace: str) -> Rules | None:
        """What is in force there; None when nothing is, or nothing is known (yet)."""
        if namespace not in self._mirrors:
            self._begin(namespace)
            return None
        in_force, ranges = (
            tuple(sorted(mirror.objects.values(), key=lambda item: str(item["metadata"]["name"])))
            for mirror in self._mirrors[namespace]
        )
        return Rules(quotas=in_force, ranges=ranges) if in_force or ranges else None

    def allowance(self, gangs: Mapping[str, Gang], manifests: Mapping[str, Any]) -> Allowance | None:
        """What the rules leave, for one cycle; None where there are none."""
        mine = (manifest for run_id, manifest in manifests.items() if run_id in gangs)
        names = {self._namespace_of(manifest) for manifest in mine} | {self._settings.namespace}
        rules = {name: found for name in sorted(names) if (found := self.rules(name)) is not None}
        if not rules:
            return None
        self._refused = {run_id: version for run_id, version in self._refused.items() if run_id in gangs}
        kinds = self._supply.kinds()

        def members(gang: Gang) -> Sequence[Member]:
            manifest = manifests.get(gang.run_id)
            if gang.placement is not None:
                view = self._roster.views.get(GangKey(gang.run_id, gang.attempt))
                if view is not None and view.jobs:
                    pod = view.jobs[0]["spec"]["template"]
                    return [self._member((view.key, "as created"), view.namespace, pod, rules.get(view.namespace))]
                return [self._planned(gang, manifest, gang.placement.members[0].devices, rules)]
            count = gang.request.devices_per_node
            names = [resource for kind, resource in kinds if kind.serves(gang.request)] if count else [""]
            return [
                self._planned(gang, manifest, [place(_ANYWHERE, name, index) for index in range(count)], rules)
                for name in names
            ]

        return Allowance(rules=rules, gangs=gangs, members=members, seen=self._seen, refused=self._refused)

    def lacking(self, jobs: Sequence[Object], *, missing: int) -> str | None:
        """What the quotas of the gang's namespace lack at this moment for `missing` of its pods; None when nothing.

        Raises `ClusterError` where waiting cannot help.
        """
        rules = self.rules(jobs[0]["metadata"]["namespace"])
        if rules is None or not missing:
            return None
        pod = limit_ranges.with_defaults(jobs[0]["spec"]["template"], rules.ranges)
        needed = {name: amount * missing for name, amount in quotas.charge(pod).items()}
        for quota in quotas.counting(pod, rules.quotas):
            short = quotas.shortage(quota, needed)
            if short is not None:
                said = f"namespace {jobs[0]['metadata']['namespace']}, quota {short.quota}: {short}"
                if short.is_for_ever:
                    raise ClusterError(said)
                return said
        return None

    # --- what a gang's pods would be ------------------------------------------------------------------------------

    def _planned(self, gang: Gang, manifest: Any, devices: Iterable[str], rules: Mapping[str, Rules]) -> Member:
        places, namespace = tuple(devices), self._namespace_of(manifest)
        node = places[0].partition("/")[0] if places else _ANYWHERE
        request, known = gang.request, rules.get(namespace)
        resources = tuple(map(resource_of, places))
        key = (self._text_of(manifest), resources, request.cpus, request.memory_bytes)
        if (key, _ranges_version(known)) not in self._members:
            order = LaunchOrder(
                key=GangKey("run", 1),
                name="",
                request=request,
                placement=Placement(members=(MemberPlacement(node=node, devices=places),)),
                env={},
            )
            (job,) = jobs_of(order, self._settings, namespace=namespace, template=manifest or {})
            return self._member(key, namespace, job["spec"]["template"], known)
        return self._members[key, _ranges_version(known)]

    def _member(self, key: object, namespace: str, pod: Object, rules: Rules | None) -> Member:
        whole = (key, _ranges_version(rules))
        found = self._members.get(whole)
        if found is None:
            if len(self._members) > _MOST_REMEMBERED:
                self._members.clear()
            filled = limit_ranges.with_defaults(pod, rules.ranges if rules is not None else ())
            found = self._members[whole] = Member(namespace=namespace, pod=filled, charge=quotas.charge(filled))
        return found

    def _seen(self, gang: Gang) -> int:
        view = self._roster.views.get(GangKey(gang.run_id, gang.attempt))
        if view is None:
            return len(gang.placement.members) if gang.launched_at is not None and gang.placement is not None else 0
        return len(view.pods.keys() | view.lost.keys())

    def _namespace_of(self, manifest: Any) -> str:
        named = ((manifest or {}).get("metadata") or {}).get("namespace")
        return str(named) if named else self._settings.namespace

    def _text_of(self, manifest: Any) -> str:
        known = self._texts.get(id(manifest))
        if known is None or known[0] is not manifest:
            if len(self._texts) > _MOST_REMEMBERED:
                self._texts.clear()
            known = self._texts[id(manifest)] = (manifest, json.dumps(manifest, sort_keys=True, default=str))
        return known[1]

    def _begin(self, namespace: str) -> None:
        if namespace not in self._opening:
            self._opening[namespace] = asyncio.create_task(self._try(namespace), name=f"rules of {namespace}")

    async def _try(self, namespace: str) -> None:
        told = ""
        while True:
            try:
                await self.follow(namespace)
                return
            except ClusterError as error:
                if str(error) != told:
                    told = str(error)
                    _log.warning("the quotas of namespace %s are not looked at before admission: %s", namespace, error)
            await asyncio.sleep(AGAIN_SECONDS)


def _ranges_version(rules: Rules | None) -> tuple[str, ...]:
    return tuple(each["metadata"]["resourceVersion"] for each in rules.ranges) if rules is not None else ()
