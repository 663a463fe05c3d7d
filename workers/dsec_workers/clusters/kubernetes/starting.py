"""From a gang's Jobs to its open start barrier: introduce its members to each other, or say why it cannot start.

Who follows the gang calls `step` until user code runs. A reason to give the start up is left in `view.failure`.
"""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

from dsec_blocks.model.clock import Clock
from dsec_blocks.model.errors import ClusterError
from dsec_workers.clusters.kubernetes import talk
from dsec_workers.clusters.kubernetes.complaints import Complaints
from dsec_workers.clusters.kubernetes.gang_view import GangView
from dsec_workers.clusters.kubernetes.patience import Patience
from dsec_workers.clusters.kubernetes.pod_fate import Fate, is_rejection
from dsec_workers.clusters.kubernetes.settings import KubernetesSettings
from dsec_workers.clusters.kubernetes.supply import Supply

NO_POD_SECONDS = 3.0
"""After this long without a pod the Job is asked why."""
ASK_AGAIN_SECONDS = 5.0
_HOPELESS = ("InvalidImageName", "ErrImageNeverPull")


@dataclass(kw_only=True)
class Starting:
    """Of the gang in `view`, whose member 0 listens at `address` once it does."""

    view: GangView
    settings: KubernetesSettings
    complaints: Complaints
    supply: Supply
    clock: Clock
    address: Callable[[], Awaitable[talk.Address | None]]
    _patience: Patience = field(init=False)
    _introduced: dict[int, str] = field(default_factory=dict)
    _asked_at: float = float("-inf")

    def __post_init__(self) -> None:
        self._patience = Patience(count=self.view.count, pull_seconds=self.settings.pull_seconds)

    async def step(self, waited: float, fallen: dict[int, str]) -> str | None:
        """Go on with the start, `waited` seconds after the Jobs were made; what keeps it waiting, when that is news."""
        view = self.view
        fates = view.fates()
        for index, why in fallen.items():
            if index != 0 or view.count > 1 or fates[index].platform is not None or index in view.lost:
                self._fail(f"member {index} on {view.members[index].node}: {why}")
                if is_rejection(fates[index].platform):
                    self.supply.penalise(view.members[index].node)
                return None
        for index, fate in fates.items():
            if fate.stuck is not None and fate.stuck.startswith(_HOPELESS):
                self._fail(f"member {index} on {view.members[index].node}: {fate.stuck}")
                return None
        is_whole = len(fates) == view.count and all(fate.is_running for fate in fates.values())
        if self.settings.has_outposts:
            await self._introduce(fates)
        elif is_whole:
            view.hear({"seq": view.last_seq + 1, "type": "started", "at": self.clock.now()})
            view.changed.set()
            return None
        missing = [index for index in range(view.count) if index not in fates]
        if missing and waited > NO_POD_SECONDS and waited - self._asked_at > ASK_AGAIN_SECONDS:
            self._asked_at = waited
            await self._ask_why(missing)
        now, overtime = self.clock.now(), waited - view.start_timeout_seconds
        self._patience.see(fates, now)
        late = self._patience.late(fates, overtime, now)
        if late:
            self._give_up_on(late)
        elif is_whole and self._patience.is_shut_too_long(overtime):
            span = f"{view.start_timeout_seconds:g} s"
            self._fail(f"its pods run and its start barrier is shut after {span}: {await self._why_shut(fates)}")
        return self._patience.news(fates, now)

    def _give_up_on(self, late: dict[int, str]) -> None:
        first, why = next(iter(late.items()))
        others = f" ({len(late)} members are not there)" if len(late) > 1 else ""
        node = self.view.members[first].node if first in self.view.members else "its node"
        span = f"{self.view.start_timeout_seconds:g} s"
        self._fail(f"member {first} on {node} is not running after {span}{others}: {why}")

    async def _ask_why(self, missing: list[int]) -> None:
        by_member = {int(job["metadata"]["labels"]["dsec.io/member"]): job for job in self.view.jobs}
        for index in missing:
            job = by_member.get(index)
            complaint = await self.complaints.about(job) if job is not None else None
            if complaint:
                self._fail(f"member {index}: its pod was not admitted: {complaint}")
                return

    def _fail(self, why: str) -> None:
        if self.view.failure is None:
            self.view.failure = why
            self.view.changed.set()

    async def _introduce(self, fates: dict[int, Fate]) -> None:
        """Tell member 0 where the others are, whenever more is known."""
        found = _addresses(fates)
        if not found.keys() - self._introduced.keys() and all(self._introduced.get(i) == a for i, a in found.items()):
            return
        address = await self.address()
        if address is None:
            return
        try:
            await self._say_where(address, found)
        except ClusterError:
            return  # it does not listen yet
        self._introduced = found

    async def _say_where(self, address: talk.Address, found: dict[int, str]) -> list[int]:
        message = {"op": "introduce", "members": {str(index): where for index, where in found.items()}}
        answer = await talk.call(address, message, timeout_seconds=talk.CONNECT_SECONDS * 2)
        waiting: list[int] = answer["waiting_for"]
        return waiting

    async def _why_shut(self, fates: dict[int, Fate]) -> str:
        """All pods run, so somebody does not hear somebody: who whom, and where."""
        address = await self.address()
        if address is None:
            return "its first pod has no address"
        found = _addresses(fates)
        try:
            waiting = await self._say_where(address, found)
        except ClusterError as error:
            return (
                f"member 0 does not answer this worker at {address} ({error}); see its pod's log, and whether a "
                f"NetworkPolicy lets the worker reach the gangs' pods on port {address.port}"
            )
        if not waiting:
            return "no member has said that it is ready; see the pods' logs"
        first, port = waiting[0], self.settings.port
        return (
            f"member {first} does not answer member 0 at {found.get(first)}:{port}; see its pod's log, and "
            f"whether a NetworkPolicy lets the gangs' pods reach each other on port {port}"
        )


def _addresses(fates: dict[int, Fate]) -> dict[int, str]:
    return {i: f.address for i, f in fates.items() if i and f.is_running and f.address is not None}
