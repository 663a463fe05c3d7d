"""The worker's view of the gangs on a Kubernetes cluster: launch, notice, stop, and being told what happens.

Everything that must survive the worker is in the cluster: Jobs whose names say run, attempt and member, with the places
in their annotations, and in each gang's first pod a supervisor that does not need us. A successor finds both.
"""

import asyncio
import logging
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Any

from dsec_blocks.gateways.faults import fault_point
from dsec_blocks.model.clock import Clock
from dsec_blocks.model.devices import Node
from dsec_blocks.model.errors import ClusterError, GangTooNew
from dsec_blocks.model.gangs import Gang, Placement
from dsec_blocks.model.notices import Notice
from dsec_workers.clusters.kubernetes import device_taints, talk
from dsec_workers.clusters.kubernetes.api import Api, Object
from dsec_workers.clusters.kubernetes.complaints import Complaints
from dsec_workers.clusters.kubernetes.errors import Forbidden, NotFound
from dsec_workers.clusters.kubernetes.following import Following
from dsec_workers.clusters.kubernetes.gang_jobs import GangJobs, missing_permission
from dsec_workers.clusters.kubernetes.gang_view import GangView
from dsec_workers.clusters.kubernetes.manifest import jobs_of
from dsec_workers.clusters.kubernetes.mirror import Mirror
from dsec_workers.clusters.kubernetes.namespaces import Namespaces
from dsec_workers.clusters.kubernetes.occupancy import pod_requests
from dsec_workers.clusters.kubernetes.room import until_free
from dsec_workers.clusters.kubernetes.roster import Roster
from dsec_workers.clusters.kubernetes.secret import NamespaceSecrets
from dsec_workers.clusters.kubernetes.settings import KubernetesSettings
from dsec_workers.clusters.kubernetes.supply import Supply
from dsec_workers.clusters.protocol import Allowance, ClusterEvent, ClusterHealth, GangKey, LaunchOrder, ObservedGang

_log = logging.getLogger(__name__)
NOTICE_SECONDS = 10.0
"""How long a notice tries to reach the gang's channel before its pods are told to stop instead."""
EVENTS_AHEAD = 1000
"""Events that wait here for whoever listens; more of them wait with those who follow the gangs."""
STOP_SECONDS = 3.0
STATUS_SECONDS = 5.0
_RETRY_SECONDS = 0.2
_POLL_SECONDS = 1.0


class KubernetesCluster:
    """Fulfils `dsec_workers.clusters.protocol.Cluster` with Jobs. Begin with `prepare`."""

    def __init__(self, api: Api, settings: KubernetesSettings, *, clock: Clock) -> None:
        self.api = api
        self._settings = settings
        self._clock = clock
        self._supply = Supply(settings, clock=clock)
        self._jobs = GangJobs(api, pool=settings.pool, at_once=settings.creates_at_once)
        self._complaints = Complaints(api, clock=clock)
        self._secrets = NamespaceSecrets(api, name=settings.secret)
        self._events: asyncio.Queue[ClusterEvent] = asyncio.Queue(EVENTS_AHEAD)
        self._roster = Roster(pool=settings.pool)
        self._tasks: dict[GangKey, asyncio.Task[None]] = {}
        self._errands: set[asyncio.Task[None]] = set()
        self._room = asyncio.Event()
        mirror = partial(Mirror, api, clock=clock)
        self._nodes = mirror("/api/v1/nodes", labels=settings.node_selector, on_change=self._supply.node_changed)
        self._slices = mirror(device_taints.SLICES, on_change=self._supply.slice_changed)
        self._namespaces = Namespaces(api, settings, supply=self._supply, roster=self._roster, clock=clock)
        self._pods = mirror("/api/v1/pods", on_change=self._pod_changed)

    async def prepare(self) -> None:
        """Follow the cluster from now on.

        Raises `ClusterError` when it cannot be read: which permission is missing, or that it does not answer.
        """
        for mirror, what in ((self._nodes, "list,watch nodes"), (self._pods, "list,watch pods")):
            try:
                await mirror.start()
            except Forbidden as error:
                raise ClusterError(missing_permission(error, what, "")) from error
        await self._namespaces.follow(self._settings.namespace)
        try:
            await self._slices.start()
        except (NotFound, Forbidden) as error:  # a cluster without DRA, or an account from before it
            _log.info("taints of single cards are not looked at: %s", error)

    async def close(self) -> None:
        """Stop following; the gangs run on."""
        tasks = [*self._tasks.values(), *self._errands]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self._tasks.clear()
        await self._nodes.stop()
        await self._pods.stop()
        await self._namespaces.close()
        await self._slices.stop()
        await self.api.close()

    async def nodes(self) -> tuple[Node, ...]:
        """The nodes as they are now; places that foreign pods use, and closed nodes, take nothing new."""
        return self._supply.nodes()

    def allowance(self, gangs: Mapping[str, Gang], manifests: Mapping[str, Any]) -> Allowance | None:
        """What the quotas of the gangs' namespaces leave; None where there are none."""
        return self._namespaces.allowance(gangs, manifests)

    def health(self) -> ClusterHealth:
        """Whether nodes and pods are followed, and which mirrors do not even try any more."""
        mirrors = (self._nodes, self._pods, self._slices, *self._namespaces.mirrors)
        return ClusterHealth(
            away=not (self._pods.is_current and self._nodes.is_current),
            hangs=tuple(why for mirror in mirrors if (why := mirror.hangs()) is not None),
        )

    # --- launching ------------------------------------------------------------------------------------------------

    async def launch(self, order: LaunchOrder) -> Mapping[str, Any]:
        """Create the gang's Jobs once its places are free, or adopt them.

        With `hold_start`, that is when the victims' pods have ended: a kubelet admits nothing before. Raises
        `ClusterError` if nothing was started.
        """
        namespace = ((order.job_manifest or {}).get("metadata") or {}).get("namespace") or self._settings.namespace
        wanted = await self._jobs_of(order, namespace)
        members = dict(enumerate(order.placement.members))
        for member in members.values():
            self._supply.hold(order.key, member)
        view = self._roster.views.get(order.key)
        if view is None:
            view = self._roster.enter(
                GangView(
                    key=order.key,
                    namespace=namespace,
                    members=members,
                    count=len(members),
                    created_at=self._clock.now(),
                    start_timeout_seconds=order.start_timeout_seconds,
                    grace_seconds=order.request.grace_seconds,
                )
            )
        view.members.update(members)  # one that was adopted knows only of the members whose Jobs were there
        try:
            needs = [pod_requests(job["spec"]["template"]) for job in wanted]
            await until_free(
                order,
                view,
                needs,
                supply=self._supply,
                overdrawn=lambda: self._namespaces.lacking(wanted, missing=len(wanted) - len(view.pods)),
                changed=self._room,
                clock=self._clock,
            )
            with fault_point("cluster.kubernetes.launch"):
                view.jobs = await self._jobs.create(wanted)
            view.created_at = self._clock.now()
        except BaseException as error:
            if order.key not in self._tasks:
                self._drop(view)
            if isinstance(error, OSError):
                raise ClusterError(str(error)) from error
            raise
        self._follow(view)
        return _launch_of(view)

    async def _jobs_of(self, order: LaunchOrder, namespace: str) -> list[Object]:
        try:
            await self._secrets.key(namespace, order.env)
        except OSError as error:
            raise ClusterError(str(error)) from error
        whole = self._secrets.is_ours_alone(namespace)
        return jobs_of(order, self._settings, namespace=namespace, template=order.job_manifest, whole_secret=whole)

    # --- telling and stopping -------------------------------------------------------------------------------------

    async def notify(self, key: GangKey, notice: Notice) -> None:
        """Tell the gang to leave by the deadline; its supervisor enforces it from then on. Gone gangs are fine.

        A gang that cannot be reached is told by its pods' SIGTERM, which nobody can take back.
        """
        fields = {
            "kind": notice.kind.value,
            "reason": notice.reason,
            "deadline": notice.deadline,
            "attempt": notice.attempt,
        }
        view = self._roster.views.get(key)
        if view is None or view.is_over:
            return
        view.notice = notice.kind.value
        deadline = min(self._clock.monotonic() + NOTICE_SECONDS, self._clock.monotonic() + self._left(notice))
        with fault_point("cluster.kubernetes.notify"):
            while view.is_started or self._is_starting(view):
                if await self._ask(view, {"op": "notify", "notice": fields}) is not None:
                    return
                if view.is_over or self._clock.monotonic() > deadline:
                    break
                await asyncio.sleep(_RETRY_SECONDS)
        if not view.is_over:
            await self._tell_by_signal(view, self._left(notice))

    async def withdraw(self, key: GangKey) -> bool:
        """Take back a notice that nobody has acted on; False when it was too late."""
        view = self._roster.views.get(key)
        if view is None:
            return False
        with fault_point("cluster.kubernetes.withdraw"):
            answer = await self._ask(view, {"op": "withdraw"})
        if answer is not None and answer["withdrawn"]:
            view.notice = None
            return True
        return False

    async def stop(self, key: GangKey, grace_seconds: float) -> None:
        """Stop whatever is left of the gang. Idempotent; its places are free when its pods have left."""
        view = self._roster.views.get(key)
        if view is None:
            view = await self._found(key)
            if view is None:
                return
        view.is_stopped = True
        view.grace_seconds = grace_seconds
        for member in view.members.values():
            self._supply.close(key, member)
        with fault_point("cluster.kubernetes.stop"):
            if view.is_started:
                await self._ask(view, {"op": "stop", "grace": grace_seconds}, seconds=STOP_SECONDS)
        view.changed.set()  # whoever follows deletes what does not leave by itself

    async def _ask(
        self, view: GangView, message: dict[str, Any], *, seconds: float = STATUS_SECONDS
    ) -> dict[str, Any] | None:
        """Ask the gang's supervisor; None when it cannot be reached now."""
        address = await self._following(view).address()
        if address is None:
            return None
        try:
            return await talk.call(address, message, timeout_seconds=seconds)
        except ClusterError:
            return None

    def _left(self, notice: Notice) -> float:
        return max(0.0, notice.deadline - self._clock.now())

    def _is_starting(self, view: GangView) -> bool:
        leader = view.fate(0)
        return self._settings.has_outposts and leader is not None and leader.is_running

    async def _tell_by_signal(self, view: GangView, seconds: float) -> None:
        if not view.is_started:
            view.is_stopped = True  # nothing of the user's has run: it may just go
            view.changed.set()
            return
        pods = [pod for index, pod in view.pods.items() if (fate := view.fate(index)) is not None and not fate.is_over]
        await asyncio.gather(*(self._jobs.delete_pod(pod, grace_seconds=int(seconds)) for pod in pods))

    # --- being told -----------------------------------------------------------------------------------------------

    async def events(self) -> AsyncIterator[ClusterEvent]:
        """What happens from now on, until pods of ours show up that only `adopt` can account for."""
        self._roster.surprised.clear()
        surprise = asyncio.create_task(self._roster.surprised.wait())
        heard: asyncio.Task[ClusterEvent] | None = None
        try:
            while True:
                heard = asyncio.create_task(self._events.get())
                await asyncio.wait({heard, surprise}, return_when=asyncio.FIRST_COMPLETED)
                if not heard.done():
                    return
                yield heard.result()
        finally:
            surprise.cancel()
            if heard is not None:
                heard.cancel()

    async def adopt(self) -> tuple[ObservedGang, ...]:
        """All gangs of the pool on the cluster; those that run are followed from where this report ends."""
        found = await self._jobs.all()
        for key in self._roster.gangs_with_pods():
            found.setdefault(key, [])  # its Jobs were deleted; its pods may still be leaving
        seen = await asyncio.gather(*(self._observe(key, jobs) for key, jobs in found.items()))
        return tuple(gang for gang in seen if gang is not None)

    async def _observe(self, key: GangKey, jobs: Sequence[Object]) -> ObservedGang | None:
        view = self._roster.views.get(key)
        if view is None:
            if key in self._roster.forgotten and all(job["metadata"].get("deletionTimestamp") for job in jobs):
                return None
            try:
                view = self._roster.found(key, jobs)
            except GangTooNew as error:  # its pods hold nothing of ours: what they take is foreign
                return ObservedGang(key=key, placement=Placement(members=()), launch={}, events=(), too_new=str(error))
            if view is None:
                return None
            for member in view.members.values():
                self._supply.hold(key, member)
            answer = await self._ask(view, {"op": "status"})
            if answer is not None:
                view.hear_status(answer)
                for record in answer["events"]:
                    view.hear(record)
        events: tuple[ClusterEvent, ...] = tuple(view.known())
        if key not in self._tasks:
            self._follow(view)
        return ObservedGang(
            key=key,
            placement=view.placement,
            launch=_launch_of(view),
            events=events,
        )

    async def _found(self, key: GangKey) -> GangView | None:
        """A gang that this worker does not follow, as the cluster has it; followed from now on."""
        jobs = (await self._jobs.all()).get(key, [])
        view = self._roster.found(key, jobs)
        if view is not None:
            self._follow(view)
        return view

    async def forget(self, key: GangKey) -> None:
        """The ledger has recorded the end: delete the Jobs, which kept it. Tried again until it is done."""
        view = self._roster.views.pop(key, None)
        task = self._tasks.pop(key, None)
        if task is not None and task is not asyncio.current_task():
            task.cancel()
        self._roster.forgotten.add(key)
        if view is None:
            return
        for member in view.members.values():
            self._supply.let_go(key, member)
        try:
            await self._jobs.delete(view.jobs)
        except (ClusterError, OSError):
            self._later(self._delete_later(view))

    async def _delete_later(self, view: GangView) -> None:
        while True:
            await asyncio.sleep(_POLL_SECONDS)
            with suppress(ClusterError, OSError):
                await self._jobs.delete(view.jobs)
                return

    def _pod_changed(self, before: Object | None, after: Object | None) -> None:
        try:
            self._supply.pod_changed(before, after)
        finally:
            self._roster.pod_changed(before, after)
            self._room.set()

    # --- following ------------------------------------------------------------------------------------------------

    def _following(self, view: GangView) -> Following:
        return Following(
            view=view,
            settings=self._settings,
            jobs=self._jobs,
            complaints=self._complaints,
            secrets=self._secrets,
            supply=self._supply,
            clock=self._clock,
            is_current=lambda: self._pods.is_current and self._nodes.is_current,
            tell=self._events.put,
        )

    def _follow(self, view: GangView) -> None:
        if view.key not in self._tasks:
            task = asyncio.create_task(self._following(view).run(), name=f"follow {view.key.run_id}")
            self._tasks[view.key] = task

    def _drop(self, view: GangView) -> None:
        """A launch that came to nothing."""
        self._roster.views.pop(view.key, None)
        for member in view.members.values():
            self._supply.let_go(view.key, member)

    def _later(self, work: Any) -> None:
        task = asyncio.create_task(work)
        self._errands.add(task)
        task.add_done_callback(self._errands.discard)


def _launch_of(view: GangView) -> dict[str, Any]:
    """What the ledger keeps of a launch; nothing of one that was cut short, so that it is made again and completed."""
    is_leaving = any(job["metadata"].get("deletionTimestamp") for job in view.jobs)
    if 0 < len(view.jobs) < view.count and not is_leaving:
        return {}
    return {
        "adapter": "kubernetes",
        "namespace": view.namespace,
        "jobs": [job["metadata"]["name"] for job in view.jobs],
    }
