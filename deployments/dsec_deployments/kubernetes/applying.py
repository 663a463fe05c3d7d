"""Bringing a cluster to what the manifests say: what would change, the change, and whether it came to life."""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from dsec_blocks.model.clock import Clock
from dsec_blocks.model.errors import ClusterError, DsecError
from dsec_deployments.kubernetes.chart import OWNER, Object
from dsec_deployments.kubernetes.kinds import Kinds, name_of
from dsec_workers.clusters.kubernetes.api import Api
from dsec_workers.clusters.kubernetes.errors import ApiError, Forbidden, NotFound

_LOOK_SECONDS = 0.5
_NOT_OURS = ("metadata", "status")


class NotDeployed(DsecError):
    """The API server does not take a manifest, or what was applied does not become healthy."""

    exit_code = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """What applying one object does."""

    kind: str
    namespace: str
    name: str
    what: str
    """new, changed, unchanged, or gone where it is taken away."""
    fields: tuple[str, ...] = ()
    """Paths that change."""


async def differences(api: Api, objects: Sequence[Object]) -> list[Difference]:
    """What applying would do, as the API server itself works it out (`dryRun=All`); nothing is changed.

    Raises `NotDeployed` with the object and the API server's own words when it refuses one.
    """
    kinds = await Kinds.of(api, objects)
    found = []
    for item in objects:
        path = kinds.path(item)
        try:
            before: Object | None = await api.get(path)
        except NotFound:
            before = None
        except ApiError as error:
            raise _refused(item, error) from error
        after = await _apply(api, path, item, dry_run=True)
        fields = tuple(_changed(before, after)) if before is not None else ()
        what = "new" if before is None else "changed" if fields else "unchanged"
        found.append(Difference(kind=item["kind"], **_place(item), what=what, fields=fields))
    return found


def taken_away(objects: Sequence[Object]) -> list[Difference]:
    """What removing these objects does."""
    return [Difference(kind=item["kind"], **_place(item), what="gone", fields=()) for item in objects]


async def apply(api: Api, objects: Sequence[Object], *, progress: Callable[[str], None] = lambda _: None) -> None:
    """Apply all of them, in order; only our own fields are touched.

    Raises `NotDeployed`.
    """
    kinds = await Kinds.of(api, objects)
    for number, item in enumerate(objects, 1):
        progress(f"{number}/{len(objects)} {name_of(item)}")
        await _apply(api, kinds.path(item), item, dry_run=False)


async def until_healthy(
    api: Api,
    objects: Sequence[Object],
    *,
    clock: Clock,
    seconds: float,
    progress: Callable[[str], None] = lambda _: None,
) -> None:
    """Return when every Deployment and DaemonSet has all of its pods.

    Raises `NotDeployed` with what is missing when they have not within `seconds`.
    """
    kinds = await Kinds.of(api, objects)
    began = clock.monotonic()
    waiting = [item for item in objects if item["kind"] in ("Deployment", "DaemonSet")]
    while waiting:
        lines = {}
        for item in waiting:
            lacks = lacking(await api.get(kinds.path(item)))
            if lacks is not None:
                lines[name_of(item)] = lacks
        waiting = [item for item in waiting if name_of(item) in lines]
        text = "; ".join(f"{name}: {lacks}" for name, lacks in lines.items())
        waited = clock.monotonic() - began
        if waiting and waited > seconds:
            raise NotDeployed(f"not healthy after {waited:.0f} s: {text}. Look at `kubectl describe` of its pods")
        if waiting:
            progress(f"{waited:.0f} s: {text}")
            await asyncio.sleep(_LOOK_SECONDS)


def lacking(item: Mapping[str, Any]) -> str | None:
    """What a Deployment or DaemonSet still lacks; None when nothing."""
    status = item.get("status") or {}
    if status.get("observedGeneration", 0) < item["metadata"].get("generation", 0):
        return "not looked at yet"
    if item["kind"] == "Deployment":
        wanted = item["spec"].get("replicas", 1)
        there, fresh = status.get("availableReplicas", 0), status.get("updatedReplicas", 0)
    else:
        wanted = status.get("desiredNumberScheduled", 0)
        there, fresh = status.get("numberAvailable", 0), status.get("updatedNumberScheduled", 0)
    if min(there, fresh) >= wanted:
        return None
    failing = [
        condition["message"]
        for condition in status.get("conditions") or ()
        if (condition["type"], condition["status"]) in (("ReplicaFailure", "True"), ("Progressing", "False"))
    ]
    return f"{min(there, fresh)} of {wanted} pods are available" + "".join(f" ({message})" for message in failing)


async def _apply(api: Api, path: str, item: Object, *, dry_run: bool) -> Object:
    try:
        return await api.apply(path, item, owner=OWNER, at="deploy.kubernetes.apply", dry_run=dry_run)
    except ApiError as error:
        raise _refused(item, error) from error


def _refused(item: Mapping[str, Any], error: ClusterError) -> NotDeployed:
    advice = ""
    if isinstance(error, Forbidden):
        advice = ". An administrator of the cluster has to apply this, or grant that verb on it"
    elif isinstance(error, NotFound):
        advice = f". Create it: kubectl create namespace {item['metadata'].get('namespace')}"
    return NotDeployed(f"{name_of(item)} is not accepted: {error}{advice}")


def _changed(before: Mapping[str, Any], after: Mapping[str, Any], at: str = "") -> list[str]:
    """Paths whose values differ, without what the server writes itself."""
    found: list[str] = []
    for key in sorted({*before, *after}):
        path = f"{at}.{key}" if at else key
        if not at and key in _NOT_OURS:
            continue
        one, other = before.get(key), after.get(key)
        if one == other:
            continue
        if isinstance(one, dict) and isinstance(other, dict):
            found += _changed(one, other, path)
        else:
            found.append(path)
    if not at:
        for key in ("labels", "annotations"):
            one, other = (each["metadata"].get(key) or {} for each in (before, after))
            found += [f"metadata.{key}.{name}" for name in sorted({*one, *other}) if one.get(name) != other.get(name)]
    return found


def _place(item: Mapping[str, Any]) -> dict[str, str]:
    return {"namespace": item["metadata"].get("namespace") or "", "name": item["metadata"]["name"]}
