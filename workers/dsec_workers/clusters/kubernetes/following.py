"""Following one gang from its Jobs to its end: listen, and see to it that it starts (`starting`) or leaves.

One loop for each gang, woken by its pods and by the clock. It repeats what it wants until it is so, since any call may
be lost and this worker is not the first and not the last to follow this gang.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass, field

from dsec_blocks.model.clock import Clock
from dsec_blocks.model.errors import ClusterError
from dsec_workers.clusters.kubernetes import talk
from dsec_workers.clusters.kubernetes.complaints import Complaints
from dsec_workers.clusters.kubernetes.gang_jobs import GangJobs
from dsec_workers.clusters.kubernetes.gang_view import GangView
from dsec_workers.clusters.kubernetes.outpost.identity import gang_token
from dsec_workers.clusters.kubernetes.secret import NamespaceSecrets
from dsec_workers.clusters.kubernetes.settings import KubernetesSettings
from dsec_workers.clusters.kubernetes.starting import NO_POD_SECONDS, Starting
from dsec_workers.clusters.kubernetes.supply import Supply
from dsec_workers.clusters.protocol import ClusterEvent, Preparing, Started

_log = logging.getLogger(__name__)
TICK_SECONDS = 1.0
CALM_SECONDS = 30.0
"""How long a gang that runs is left alone: thousands of them, looked at each second, would take half a processor."""
PARTIAL_SECONDS = 15.0
"""After its grace, a gang of which some members have ended is not left to itself any longer than this."""
REPEAT_SECONDS = 5.0
RETRY_SECONDS = 0.2
SIDECAR_SECONDS = 10.0
"""What other containers of a pod have after the gang's has ended: they hold its devices as long as they run."""
HEARD_AHEAD = 1000
"""Records of one gang that wait here until somebody hears of them; more of them wait with its supervisor."""


@dataclass(kw_only=True)
class Following:
    """Follows `view`; what happens goes to `tell`."""

    view: GangView
    settings: KubernetesSettings
    jobs: GangJobs
    complaints: Complaints
    secrets: NamespaceSecrets
    supply: Supply
    clock: Clock
    is_current: Callable[[], bool]
    """Whether the mirror of pods follows right now: absence means nothing while it does not."""
    tell: Callable[[ClusterEvent], Awaitable[None]]
    """Returns when there is room for it."""
    _starting: Starting = field(init=False)
    _began: float = 0.0
    _partial_since: float | None = None
    _removed_at: float | None = None
    _dismissed: dict[str, float] = field(default_factory=dict)
    """uid of a pod whose member has ended → when what is left in it was last told to stop"""

    def __post_init__(self) -> None:
        self._starting = Starting(
            view=self.view,
            settings=self.settings,
            complaints=self.complaints,
            supply=self.supply,
            clock=self.clock,
            address=self.address,
        )

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
                    async with asyncio.timeout(self._patience()):
                        await view.changed.wait()
            await self._hear_the_rest(listening)
        finally:
            listening.cancel()
            with suppress(asyncio.CancelledError):
                await listening
        await self._conclude()

    def _patience(self) -> float:
        """How long to wait for news before the clock is looked at."""
        if self.view.is_calm:
            return CALM_SECONDS
        has_no_pod = not self.view.fates() and not self.view.is_stopped and self.view.failure is None
        return NO_POD_SECONDS if has_no_pod else TICK_SECONDS

    async def _hear_the_rest(self, listening: "asyncio.Task[None]") -> None:
        if not listening.done():
            await asyncio.wait({listening}, timeout=RETRY_SECONDS)

    async def _step(self) -> bool:
        """Do what the moment asks for; whether the gang is over."""
        view = self.view
        for event in view.news():
            await self.tell(event)
        if not self.is_current():
            return False
        if view.settled(is_fenced=self.supply.is_fenced):
            return True
        now, fallen = self.clock.monotonic(), view.fallen()
        if not view.is_started and view.failure is None and not view.is_stopped:
            waits_for = await self._starting.step(now - self._began, fallen)
            if waits_for is not None:
                await self.tell(Preparing(key=view.key, at=self.clock.now(), why=waits_for))
        await self._dismiss_sidecars(now)
        if view.failure is not None or view.is_stopped:
            await self._see_it_leave(now, grace=0.0 if not view.is_started else view.grace_seconds)
        elif fallen:
            since = self._partial_since = self._partial_since if self._partial_since is not None else now
            patience = view.grace_seconds + PARTIAL_SECONDS if self.settings.has_outposts else 0.0
            if now - since >= patience:
                await self._remove(grace=0.0)
        return False

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
        while self.settings.has_outposts:
            try:
                address = await self.address()
                if address is not None and await self._hear(address):
                    return
            except (ClusterError, OSError):
                pass
            except Exception:  # noqa: BLE001 - nobody else listens to this gang
                _log.exception("attempt %d of run %s: listened to again", view.key.attempt, view.key.run_id)
            await asyncio.sleep(RETRY_SECONDS)

    async def _hear(self, address: talk.Address) -> bool:
        """Take in what the supervisor tells; whether it said that the gang is gone."""
        view = self.view
        async for record in talk.follow(address, view.last_seq):
            if record["type"] == "started":
                await self._ask_for_cards(address)
            view.hear(record)
            view.changed.set()
            if record["type"] == "gone":
                return True
            while len(view.fresh) >= HEARD_AHEAD:  # noqa: ASYNC110 - whoever takes them tells nobody
                await asyncio.sleep(RETRY_SECONDS)
        return False

    async def _ask_for_cards(self, address: talk.Address) -> None:
        """Which cards the members were given is known when the gang has started; worth one question, not a start."""
        with suppress(ClusterError, OSError):
            self.view.hear_status(await talk.call(address, {"op": "status"}, timeout_seconds=talk.CONNECT_SECONDS))

    async def _dismiss_sidecars(self, now: float) -> None:
        """Stop what is left in pods whose member has ended: a pod holds its devices until all of it has stopped."""
        for index, pod in list(self.view.pods.items()):
            fate, uid = self.view.fate(index), pod["metadata"]["uid"]
            if fate is None or not fate.has_ended or not fate.has_company:
                continue
            if now - self._dismissed.get(uid, float("-inf")) > SIDECAR_SECONDS + REPEAT_SECONDS:
                self._dismissed[uid] = now
                await self.jobs.delete_pod(pod, grace_seconds=int(SIDECAR_SECONDS))

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

    async def _conclude(self) -> None:
        view = self.view
        view.is_over = True
        for member in view.members.values():
            self.supply.let_go(view.key, member)
        for event in view.ending(self.clock.now()):
            await self.tell(event)
            if isinstance(event, Started):
                for member in view.members.values():
                    self.supply.forgive(member.node)
