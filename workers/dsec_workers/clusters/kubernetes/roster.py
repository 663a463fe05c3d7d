"""The gangs of the pool that this worker knows of, and the pods of each as the mirror shows them.

A pod with our pool's label that belongs to no gang here is a surprise: somebody has to account for it.
"""

import asyncio
from collections.abc import Sequence

from dsec_blocks.model.errors import GangTooNew
from dsec_workers.clusters.kubernetes.api import Object
from dsec_workers.clusters.kubernetes.gang_view import GangView
from dsec_workers.clusters.kubernetes.mirror import key_of as name_of
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
    """Views by gang. `pod_changed` is what the mirror of pods calls."""

    def __init__(self, *, pool: str) -> None:
        self._pool = label_value(pool)
        self.views: dict[GangKey, GangView] = {}
        self.forgotten: set[GangKey] = set()
        """Ended and recorded; what is still seen of them is on its way out."""
        self.too_new: set[GangKey] = set()
        """What says that a newer DSec has made it: its pods are no surprise any more."""
        self._pods: dict[GangKey, dict[tuple[str, str], Object]] = {}
        """The pods of each gang of the pool, as the mirror has them: a launch must not go through everybody's."""
        self.surprised = asyncio.Event()
        """Pods of ours were seen that nobody here knows: somebody has to adopt (or sweep) them."""

    def is_ours(self, pod: Object) -> bool:
        """Whether a pod is of a gang of this pool."""
        return (pod["metadata"].get("labels") or {}).get(LABEL_POOL) == self._pool

    def pod_changed(self, before: Object | None, after: Object | None) -> None:
        """A pod came, changed or went."""
        for each, is_there in ((before, False), (after, True)):
            key = key_of(each) if each is not None and self.is_ours(each) else None
            if each is not None and key is not None:
                self._put(key, each, is_there=is_there)
        pod = after or before
        key = key_of(pod) if pod is not None and self.is_ours(pod) else None
        if pod is None or key is None:
            return
        view = self.views.get(key)
        if view is not None:
            view.see(member_of(pod), after, before=before)
        elif after is not None and not self._is_accounted_for(key) and not after["metadata"].get("deletionTimestamp"):
            self.surprised.set()

    def _is_accounted_for(self, key: GangKey) -> bool:
        return key in self.forgotten or key in self.too_new

    def _put(self, key: GangKey, pod: Object, *, is_there: bool) -> None:
        pods, name = self._pods.setdefault(key, {}), name_of(pod)
        if is_there:
            pods[name] = pod
            return
        pods.pop(name, None)
        if not pods:
            del self._pods[key]

    def gangs_with_pods(self) -> list[GangKey]:
        """The gangs that have pods and are not over and forgotten."""
        return [key for key in self._pods if key not in self.forgotten]

    def pods_of(self, key: GangKey) -> dict[int, Object]:
        """By member, the pods of a gang that is not over and forgotten."""
        if key in self.forgotten:
            return {}
        return {member_of(pod): pod for pod in self._pods.get(key, {}).values()}

    def enter(self, view: GangView) -> GangView:
        """Know of a gang from now on, with the pods that it has already."""
        self.forgotten.discard(view.key)
        self.too_new.discard(view.key)
        self.views[view.key] = view
        for member, pod in self.pods_of(view.key).items():
            view.see(member, pod, before=None)
        return view

    def found(self, key: GangKey, jobs: Sequence[Object]) -> GangView | None:
        """Enter a gang that was not launched here, as the cluster's objects describe it; None when there are none.

        Raises `GangTooNew` for one that a newer DSec has launched.
        """
        pods = self.pods_of(key)
        sources: list[Object] = [*jobs, *pods.values()]
        if not sources:
            return None
        try:
            for each in sources:
                refuse_newer(each)
        except GangTooNew:
            self.too_new.add(key)
            raise
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
