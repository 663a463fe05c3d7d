"""The gangs of the pool that this worker knows of, and the pods of each as the mirror shows them.

A pod with our pool's label that belongs to no gang here is a surprise: somebody has to account for it.
"""

import asyncio
from collections.abc import Sequence

from dsec_workers.clusters.kubernetes.api import Object
from dsec_workers.clusters.kubernetes.gang_view import GangView
from dsec_workers.clusters.kubernetes.mirror import Mirror
from dsec_workers.clusters.kubernetes.naming import (
    LABEL_POOL,
    key_of,
    label_value,
    member_of,
    members_of,
    placement_of,
    refuse_newer,
    timing_of,
)
from dsec_workers.clusters.protocol import GangKey


class Roster:
    """Views by gang. `pods` is set once the mirror exists; `pod_changed` is what the mirror calls."""

    def __init__(self, *, pool: str) -> None:
        self._pool = label_value(pool)
        self.pods: Mirror | None = None
        self.views: dict[GangKey, GangView] = {}
        self.forgotten: set[GangKey] = set()
        """Ended and recorded; what is still seen of them is on its way out."""
        self.surprised = asyncio.Event()
        """Pods of ours were seen that nobody here knows: somebody has to adopt (or sweep) them."""

    def is_ours(self, pod: Object) -> bool:
        """Whether a pod is of a gang of this pool."""
        return (pod["metadata"].get("labels") or {}).get(LABEL_POOL) == self._pool

    def pod_changed(self, before: Object | None, after: Object | None) -> None:
        """A pod came, changed or went."""
        pod = after or before
        key = key_of(pod) if pod is not None and self.is_ours(pod) else None
        if pod is None or key is None:
            return
        view = self.views.get(key)
        if view is not None:
            view.see(member_of(pod), after, before=before)
        elif after is not None and key not in self.forgotten and not after["metadata"].get("deletionTimestamp"):
            self.surprised.set()

    def pods_by_gang(self) -> dict[GangKey, dict[int, Object]]:
        """All pods of gangs that are not over and forgotten."""
        found: dict[GangKey, dict[int, Object]] = {}
        for pod in self.pods.objects.values() if self.pods is not None else ():
            key = key_of(pod) if self.is_ours(pod) else None
            if key is not None and key not in self.forgotten:
                found.setdefault(key, {})[member_of(pod)] = pod
        return found

    def enter(self, view: GangView) -> GangView:
        """Know of a gang from now on, with the pods that it has already."""
        self.forgotten.discard(view.key)
        self.views[view.key] = view
        for member, pod in self.pods_by_gang().get(view.key, {}).items():
            view.see(member, pod, before=None)
        return view

    def found(self, key: GangKey, jobs: Sequence[Object]) -> GangView | None:
        """Enter a gang that was not launched here, as the cluster's objects describe it; None when there are none.

        Raises `GangTooNew` for one that a newer DSec has launched.
        """
        pods = self.pods_by_gang().get(key, {})
        sources: list[Object] = [*jobs, *pods.values()]
        if not sources:
            return None
        for each in sources:
            refuse_newer(each)
        first = min(sources, key=member_of)
        created_at, start_timeout, grace = timing_of(first)
        return self.enter(
            GangView(
                key=key,
                namespace=first["metadata"]["namespace"],
                members={member_of(each): placement_of(each) for each in sources},
                count=members_of(first),
                created_at=created_at,
                start_timeout_seconds=start_timeout,
                grace_seconds=grace,
                jobs=list(jobs),
                are_jobs_deleted=not jobs,
            )
        )
