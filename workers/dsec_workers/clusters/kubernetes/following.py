"""Following one gang from its Jobs to its end: introduce its members, listen, and see to it that it starts or leaves.

One loop for each gang, woken by its pods and by the clock. It repeats what it wants until it is so, since any call may
be lost and this worker is not the first and not the last to follow this gang.
"""

import asyncio
import logging
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field

from dsec_blocks.model.clock import Clock
from dsec_blocks.model.errors import ClusterError
from dsec_workers.clusters.kubernetes import talk
from dsec_workers.clusters.kubernetes.gang_jobs import GangJobs
from dsec_workers.clusters.kubernetes.gang_view import GangView
from dsec_workers.clusters.kubernetes.outpost.identity import gang_token
from dsec_workers.clusters.kubernetes.pod_fate import is_rejection
from dsec_workers.clusters.kubernetes.secret import NamespaceSecrets
from dsec_workers.clusters.kubernetes.settings import KubernetesSettings
from dsec_workers.clusters.kubernetes.supply import Supply
from dsec_workers.clusters.protocol import ClusterEvent, Started

_log = logging.getLogger(__name__)
TICK_SECONDS = 1.0
NO_POD_SECONDS = 3.0
"""After this long without a pod the Job is asked why."""
PARTIAL_SECONDS = 15.0
"""After its grace, a gang of which some members have ended is not left to itself any longer than this."""
REPEAT_SECONDS = 5.0
RETRY_SECONDS = 0.2
_HOPELESS = ("InvalidImageName", "ErrImageNeverPull")


@dataclass(kw_only=True)
class Following:
    """Follows `view`; what happens goes to `tell`."""

    view: GangView
    settings: KubernetesSettings
    jobs: GangJobs
    secrets: NamespaceSecrets
    supply: Supply
    clock: Clock
    is_current: Callable[[], bool]
    """Whether the mirror of pods follows right now: absence means nothing while it does not."""
    tell: Callable[[ClusterEvent], None]
    _introduced: dict[int, str] = field(default_factory=dict)
    _began: float = 0.0
    _partial_since: float | None = None
    _removed_at: float | None = None
    _asked_at: float = float("-inf")

    async def run(self) -> None:
        """Until the gang is over and its end was told."""
        view, listening = self.view, asyncio.create_task(self._listen(), name=f"listen {self.view.key.run_id}")
        self._began = self.clock.monotonic() - max(0.0, self.clock.now() - view.created_at)
        try:
            while True:
                view.changed.clear()
                try:
                    if await self._step():
                        break
                except (ClusterError, OSError) as error:
                    _log.debug("attempt %d of run %s: tried again: %s", view.key.attempt, view.key.run_id, error)
                except Exception:  # noqa: BLE001 - nobody else follows this gang: its devices would never be free
                    _log.exception("attempt %d of run %s: tried again", view.key.attempt, view.key.run_id)
                with suppress(TimeoutError):
                    async with asyncio.timeout(TICK_SECONDS):
                        await view.changed.wait()
            await self._hear_the_rest(listening)
        finally:
            listening.cancel()
            with suppress(asyncio.CancelledError):
                await listening
        self._conclude()

    async def _hear_the_rest(self, listening: "asyncio.Task[None]") -> None:
        if not listening.done():
            await asyncio.wait({listening}, timeout=RETRY_SECONDS)

    async def _step(self) -> bool:
        """Do what the moment asks for; whether the gang is over."""
        view = self.view
        for event in view.news():
            self.tell(event)
        if not self.is_current():
            return False
        if view.settled(is_fenced=self.supply.is_fenced):
            return True
        now, fallen = self.clock.monotonic(), view.fallen()
        if not view.is_started and view.failure is None and not view.is_stopped:
            await self._starting(now, fallen)
        if view.failure is not None or view.is_stopped:
            await self._see_it_leave(now, grace=0.0 if not view.is_started else view.grace_seconds)
        elif fallen:
            since = self._partial_since = self._partial_since if self._partial_since is not None else now
            patience = view.grace_seconds + PARTIAL_SECONDS if self.settings.has_outposts else 0.0
            if now - since >= patience:
                await self._remove(grace=0.0)
        return False

    async def _starting(self, now: float, fallen: dict[int, str]) -> None:
        view = self.view
        fates = view.fates()
        for index, why in fallen.items():
            if index != 0 or view.count > 1 or fates[index].platform is not None or index in view.lost:
                self._fail(f"member {index} on {view.members[index].node}: {why}")
                if is_rejection(fates[index].platform):
                    self.supply.penalise(view.members[index].node)
                return
        stuck = {index: fate.stuck for index, fate in fates.items() if fate.stuck is not None}
        for index, why in stuck.items():
            if why.startswith(_HOPELESS):
                self._fail(f"member {index} on {view.members[index].node}: {why}")
                return
        if self.settings.has_outposts:
            await self._introduce()
        elif fates and len(fates) == view.count and all(fate.is_running for fate in fates.values()):
            view.hear({"seq": view.last_seq + 1, "type": "started", "at": self.clock.now()})
            view.changed.set()
        waited = now - self._began
        missing = [index for index in range(view.count) if index not in fates]
        if missing and waited > NO_POD_SECONDS and now - self._asked_at > REPEAT_SECONDS:
            self._asked_at = now
            await self._ask_why(missing)
        if waited > view.start_timeout_seconds and view.failure is None:
            late = {i: stuck.get(i) or (fates[i].phase if i in fates else "no pod") for i in range(view.count)}
            late = {i: why for i, why in late.items() if why != "Running"} or {0: "did not get to the start barrier"}
            first, why = next(iter(late.items()))
            others = f" ({len(late)} members are not there)" if len(late) > 1 else ""
            node = view.members[first].node if first in view.members else "its node"
            self._fail(f"member {first} on {node} is not running after {view.start_timeout_seconds:g} s{others}: {why}")

    async def _ask_why(self, missing: list[int]) -> None:
        by_member = {int(job["metadata"]["labels"]["dsec.io/member"]): job for job in self.view.jobs}
        for index in missing:
            job = by_member.get(index)
            complaint = await self.jobs.complaint(job) if job is not None else None
            if complaint:
                self._fail(f"member {index}: its pod was not admitted: {complaint}")
                return

    def _fail(self, why: str) -> None:
        self.view.failure = why
        self.view.changed.set()

    async def _introduce(self) -> None:
        """Tell member 0 where the others are, whenever more is known."""
        view = self.view
        found = {i: f.address for i, f in view.fates().items() if i and f.is_running and f.address is not None}
        if not found.keys() - self._introduced.keys() and all(self._introduced.get(i) == a for i, a in found.items()):
            return
        address = await self.address()
        if address is None:
            return
        message = {"op": "introduce", "members": {str(index): where for index, where in found.items()}}
        with suppress(ClusterError):
            await talk.call(address, message, timeout_seconds=talk.CONNECT_SECONDS * 2)
            self._introduced = dict(found)

    async def address(self) -> talk.Address | None:
        """Where member 0's outpost listens; None while (or once) its pod does not run."""
        leader = self.view.fate(0)
        if leader is None or not leader.is_running or leader.address is None or not self.settings.has_outposts:
            return None
        key = await self.secrets.key(self.view.namespace)
        return talk.Address(host=leader.address, port=self.settings.port, token=gang_token(key, self.view.key))

    async def _listen(self) -> None:
        """Hear what the supervisor tells, from where it was heard last, until it says that the gang is gone."""
        view = self.view
        while True:
            with suppress(ClusterError, OSError):
                address = await self.address()
                if address is not None:
                    async for record in talk.follow(address, view.last_seq):
                        view.hear(record)
                        view.changed.set()
                        if record["type"] == "gone":
                            return
            await asyncio.sleep(RETRY_SECONDS)

    async def _see_it_leave(self, now: float, *, grace: float) -> None:
        """A gang that was given up or stopped: ask its pods to leave, again and again until they have."""
        if self._removed_at is None or now - self._removed_at > max(REPEAT_SECONDS, grace):
            self._removed_at = now
            await self._remove(grace=0.0 if self.view.failure is not None else grace)

    async def _remove(self, *, grace: float) -> None:
        view = self.view
        for pod in [pod for index, pod in view.pods.items() if not (fate := view.fate(index)) or not fate.is_over]:
            await self.jobs.delete_pod(pod, grace_seconds=int(grace))
        await self.jobs.delete(view.jobs)
        view.are_jobs_deleted = True
        view.changed.set()

    def _conclude(self) -> None:
        view = self.view
        view.is_over = True
        for member in view.members.values():
            self.supply.let_go(view.key, member)
        for event in view.ending(self.clock.now()):
            self.tell(event)
            if isinstance(event, Started):
                for member in view.members.values():
                    self.supply.forgive(member.node)
