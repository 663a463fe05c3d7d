"""What of a release is on the cluster: found by its labels, so that what the values no longer ask for goes away again.

Only what we applied ourselves is ours to take away: the API server keeps who set which field. Gangs outlive their
workers, so nothing that they need is taken from under them: whoever wants it gone sees to it that they have left.
"""

import asyncio
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from dsec_blocks.model.clock import Clock
from dsec_blocks.model.errors import DsecError
from dsec_deployments.kubernetes.applying import NotDeployed
from dsec_deployments.kubernetes.chart import OWNER, Object
from dsec_deployments.kubernetes.kinds import Kinds, UnknownKind, name_of
from dsec_workers.clusters.kubernetes.api import Api
from dsec_workers.clusters.kubernetes.errors import Forbidden
from dsec_workers.clusters.kubernetes.naming import ANNOTATION_NAME, LABEL_POOL, label_value

LABEL_NAME, LABEL_RELEASE = "app.kubernetes.io/name", "app.kubernetes.io/instance"
LABEL_NAMESPACE = "dsec.io/release-namespace"
"""A release is a name and a namespace: two may be called the same, and some of their objects are in no namespace."""
WORKLOADS = (("apps/v1", "Deployment"), ("apps/v1", "DaemonSet"))
KINDS = (
    *WORKLOADS,
    ("policy/v1", "PodDisruptionBudget"),
    ("networking.k8s.io/v1", "NetworkPolicy"),
    ("v1", "ConfigMap"),
    ("v1", "ResourceQuota"),
    ("rbac.authorization.k8s.io/v1", "RoleBinding"),
    ("rbac.authorization.k8s.io/v1", "Role"),
    ("rbac.authorization.k8s.io/v1", "ClusterRoleBinding"),
    ("rbac.authorization.k8s.io/v1", "ClusterRole"),
    ("v1", "ServiceAccount"),
    ("v1", "Secret"),
    ("flowcontrol.apiserver.k8s.io/v1", "FlowSchema"),
    ("flowcontrol.apiserver.k8s.io/v1", "PriorityLevelConfiguration"),
    ("scheduling.k8s.io/v1", "PriorityClass"),
)
"""All kinds that the chart makes, in the order in which they are taken away."""
_LOOK_SECONDS = 0.5
_NAMED = 3


class GangsRun(DsecError):
    """Gangs need what is to be taken away."""

    exit_code = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Release:
    """Which release."""

    name: str
    namespace: str

    @property
    def labels(self) -> str:
        """The selector of all its objects and pods."""
        return f"{LABEL_NAME}=dsec,{LABEL_RELEASE}={self.name},{LABEL_NAMESPACE}={self.namespace}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Present:
    """What we applied of a release, in the order of `KINDS`."""

    objects: tuple[Object, ...]
    unseen: tuple[str, ...] = ()
    """Kinds that this account may not list: what is left of these nobody can say."""

    def beside(self, objects: Iterable[Object]) -> "Present":
        """What is there and is not among `objects`."""
        kept = {name_of(item) for item in objects}
        return Present(objects=tuple(o for o in self.objects if name_of(o) not in kept), unseen=self.unseen)


async def present(api: Api, release: Release) -> Present:
    """What of the release is on the cluster by our own doing; what helm or somebody else made is theirs."""
    kinds = await Kinds.of(api, [{"apiVersion": version} for version, _ in KINDS])
    found: list[Object] = []
    unseen = []
    for version, kind in KINDS:
        try:
            items, _ = await api.list(kinds.collection(version, kind), labels=release.labels)
        except UnknownKind:
            continue
        except Forbidden:
            unseen.append(kind)
            continue
        found += [{**item, "apiVersion": version, "kind": kind} for item in items if _is_ours(item)]
    return Present(objects=tuple(found), unseen=tuple(unseen))


async def refuse_while_gangs_run(api: Api, whole: Present, going: Present) -> None:
    """Raises `GangsRun` where a namespace loses the worker's rights (`going`) and gangs of its pool have Jobs there.

    `whole` is all of the release, which says what its pool is called.
    """
    labels = _pool_labels(whole)
    for namespace in sorted({item["metadata"]["namespace"] for item in going.objects if item["kind"] == "Role"}):
        jobs, _ = await api.list(f"/apis/batch/v1/namespaces/{namespace}/jobs", labels=labels)
        names = sorted({(job["metadata"].get("annotations") or {}).get(ANNOTATION_NAME) or "?" for job in jobs})
        if names:
            more = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
            raise GangsRun(
                f"gangs still run in namespace {namespace}, and nobody would look after them any more: "
                f"{', '.join(names[:_NAMED])}{more}. Nothing was taken away. Let them end, or have them checkpoint and "
                'leave: `dsec freeze --why "…"`, then `dsec evict RUN` each'
            )


async def remove(api: Api, objects: Sequence[Object], *, progress: Callable[[str], None] = lambda _: None) -> None:
    """Delete these very objects, in order. One that is gone already is no error."""
    kinds = await Kinds.of(api, objects)
    for number, item in enumerate(objects, 1):
        progress(f"{number}/{len(objects)} {name_of(item)} goes")
        uid = item["metadata"]["uid"]
        await api.delete(kinds.path(item), uid=uid, propagation="Background", at="deploy.kubernetes.delete")


async def remove_all(
    api: Api, release: Release, *, clock: Clock, seconds: float, progress: Callable[[str], None] = lambda _: None
) -> Present:
    """Take the whole release away, its workers and agents first; returns what it was.

    Raises `GangsRun` before anything is touched, and `NotDeployed` when pods of it are still there after `seconds`.
    """
    found = await present(api, release)
    await refuse_while_gangs_run(api, found, found)
    working = [item for item in found.objects if (item["apiVersion"], item["kind"]) in WORKLOADS]
    await remove(api, working, progress=progress)
    await _until_no_pod(api, release, clock=clock, seconds=seconds, progress=progress)
    await refuse_while_gangs_run(api, found, found)  # what the worker admitted meanwhile
    await remove(api, [item for item in found.objects if item not in working], progress=progress)
    return found


async def _until_no_pod(
    api: Api, release: Release, *, clock: Clock, seconds: float, progress: Callable[[str], None]
) -> None:
    began = clock.monotonic()
    while True:
        pods, _ = await api.list(f"/api/v1/namespaces/{release.namespace}/pods", labels=release.labels)
        if not pods:
            return
        waited = clock.monotonic() - began
        if waited > seconds:
            raise NotDeployed(f"{len(pods)} pods of {release.name} have not left after {waited:.0f} s; try it again")
        progress(f"{waited:.0f} s: {len(pods)} pods leave")
        await asyncio.sleep(_LOOK_SECONDS)


def _is_ours(item: Object) -> bool:
    return any(entry.get("manager") == OWNER for entry in item["metadata"].get("managedFields") or ())


def _pool_labels(found: Present) -> str:
    """The selector of the gangs of the release's pool; of all pools' where its worker is gone."""
    for item in found.objects:
        if item["kind"] == "Deployment":
            command: list[Any] = item["spec"]["template"]["spec"]["containers"][0].get("command") or []
            if "--pool" in command[:-1]:
                return f"{LABEL_POOL}={label_value(command[command.index('--pool') + 1])}"
    return LABEL_POOL
