"""The worker's view of the gangs on this machine: launch, notice, stop, and being told what happens.

The worker may die at any instruction. What it started is in files (`layout`) and in supervisors that do not need it;
a successor finds both. An answer that was lost is asked for again: the supervisor's lock makes a second start
impossible.
"""

import asyncio
import os
from collections.abc import AsyncIterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from dsec_blocks.gateways import files, processes
from dsec_blocks.gateways.faults import fault_point
from dsec_blocks.model import gang_protocol
from dsec_blocks.model.clock import Clock
from dsec_blocks.model.devices import Node
from dsec_blocks.model.errors import ClusterError
from dsec_blocks.model.gangs import Gang, Placement
from dsec_blocks.model.notices import Notice, NoticeKind
from dsec_workers.clusters.local import talk
from dsec_workers.clusters.local.burial import bury, clear_away
from dsec_workers.clusters.local.fork_server_client import ForkServer
from dsec_workers.clusters.local.happenings import event_of, read_events
from dsec_workers.clusters.local.layout import (
    GangDirectory,
    devices_of,
    gangs_of,
    order_to_json,
    read_json,
    supervisor_of,
    to_bytes,
)
from dsec_workers.clusters.local.leftovers import kill_leftovers, leftovers_of
from dsec_workers.clusters.protocol import ClusterEvent, ClusterHealth, GangKey, LaunchOrder, ObservedGang
from dsec_workers.clusters.talk import NotThere

_ENDS = ("devices_released", "gone")
_ANSWER_SECONDS = 20.0
_RECONNECT_SECONDS = 0.1
_RETRY_SECONDS = 1.0
EVENTS_AHEAD = 1000
"""Events that wait here for whoever listens; more of them wait with their supervisors."""


class LocalCluster:
    """Fulfils `dsec_workers.clusters.protocol.Cluster` with processes on this machine."""

    def __init__(self, *, home: Path, nodes: tuple[Node, ...], clock: Clock) -> None:
        self._home = home.resolve()
        self._nodes = nodes
        self._clock = clock
        self._events: asyncio.Queue[ClusterEvent] = asyncio.Queue(EVENTS_AHEAD)
        self._followed: dict[GangKey, asyncio.Task[None]] = {}
        self._fork_server = ForkServer(home=self._home, clock=clock)

    async def nodes(self) -> tuple[Node, ...]:
        """The nodes and devices as declared, or as found when this cluster was made."""
        return self._nodes

    def health(self) -> ClusterHealth:
        """A machine is there as long as its worker is."""
        return ClusterHealth()

    def allowance(self, gangs: Mapping[str, Gang], manifests: Mapping[str, Any]) -> None:
        """On one machine nobody limits gangs but the devices."""

    async def prepare(self) -> None:
        """Have the fork-server ready, so that the first launch does not wait for it."""
        for made in (self._home, gangs_of(self._home), devices_of(self._home)):
            made.mkdir(mode=0o700, parents=True, exist_ok=True)
        await self._fork_server.ensure()

    # --- launching ------------------------------------------------------------------------------------------------

    async def launch(self, order: LaunchOrder) -> Mapping[str, Any]:
        """Start the gang, or adopt it if its key exists.

        Raises `ClusterError` if nothing was started.
        """
        directory = GangDirectory.of(self._home, order.key)
        directory.path.mkdir(mode=0o700, parents=True, exist_ok=True)
        if not directory.order.exists():
            content = to_bytes(order_to_json(order))
            files.write(directory.order, content, at="cluster.order.write", mode=0o600)
        record = read_json(directory.supervisor)
        if record is None:
            record = await self._start_supervisor(directory)
        self._follow(order.key, directory, after=0)
        return {"adapter": "local", **record}

    async def _start_supervisor(self, directory: GangDirectory) -> dict[str, Any]:
        problem: ClusterError | None = None
        for _ in range(3):
            try:
                await self._fork_server.ensure()
                message = {"op": "launch", "directory": str(directory.path)}
                with fault_point("cluster.launch"):
                    await self._fork_server.ask(message)
            except (ClusterError, OSError) as error:
                problem = error if isinstance(error, ClusterError) else ClusterError(str(error))
            record = read_json(directory.supervisor)
            if record is not None:
                return record
        record = await self._give_up_launch(directory, problem)
        if record is not None:
            return record
        raise ClusterError(f"the gang in {directory.path} was not started: {problem or 'no supervisor appeared'}")

    async def _give_up_launch(self, directory: GangDirectory, problem: ClusterError | None) -> dict[str, Any] | None:
        """Make sure that a supervisor that was asked for does not start later, when nobody expects it.

        Returns the record of one that did start after all.
        """
        deadline = self._clock.monotonic() + _ANSWER_SECONDS
        while (lock := processes.hold_lock(directory.lock, blocking=False, at="cluster.launch.fence")) is None:
            record = read_json(directory.supervisor)  # its supervisor is coming to life, or just dying
            if record is not None or self._clock.monotonic() > deadline:
                return record
            await asyncio.sleep(0.05)
        try:
            record = read_json(directory.supervisor)
            if record is None:
                gone = {"events": [], "start_failure": str(problem)}
                files.write(directory.gone, to_bytes(gone), at="cluster.launch.give_up")
            return record
        finally:
            os.close(lock)

    # --- telling and stopping -------------------------------------------------------------------------------------

    async def notify(self, key: GangKey, notice: Notice) -> None:
        """Tell the gang to leave by the deadline; its supervisor enforces it from then on. Gone gangs are fine."""
        fields = {
            "kind": notice.kind.value,
            "reason": notice.reason,
            "deadline": notice.deadline,
            "attempt": notice.attempt,
        }
        with fault_point("cluster.notify"):
            await self._ask(key, {"op": "notify", "notice": fields})

    async def withdraw(self, key: GangKey) -> bool:
        """Take back a notice that nobody has acted on; False when it was too late."""
        with fault_point("cluster.withdraw"):
            answer = await self._ask(key, {"op": "withdraw"})
        return answer is not None and bool(answer["withdrawn"])

    async def stop(self, key: GangKey, grace_seconds: float) -> None:
        """Stop whatever is left of the gang, its uploader included. Idempotent."""
        with fault_point("cluster.stop"):
            await self._ask(key, {"op": "stop", "grace": grace_seconds})

    async def _ask(self, key: GangKey, message: dict[str, Any]) -> dict[str, Any] | None:
        """Ask the gang's supervisor; None when there is none any more (what it left is then cleared up)."""
        directory = GangDirectory.of(self._home, key)
        record = read_json(directory.supervisor)
        if record is None:
            return None
        deadline = self._clock.monotonic() + _ANSWER_SECONDS
        while True:
            try:
                return await talk.call(Path(record["channel"]), message, timeout_seconds=_ANSWER_SECONDS)
            except NotThere:
                if directory.gone.exists():
                    return None
                if not processes.is_alive(supervisor_of(record)):
                    await self._bury(key, directory, record)
                    return None
                if self._clock.monotonic() > deadline:
                    raise
            await asyncio.sleep(_RECONNECT_SECONDS)

    # --- being told -----------------------------------------------------------------------------------------------

    async def events(self) -> AsyncIterator[ClusterEvent]:
        """What happens from now on, and everything `adopt` has not yet reported."""
        if not self._followed:
            for key, directory in self._directories():
                if directory.supervisor.exists():  # else it is not started (yet); `launch` follows what it starts
                    self._follow(key, directory, after=0)
        while True:
            yield await self._events.get()

    async def adopt(self) -> tuple[ObservedGang, ...]:
        """All gangs in the home; those that run are followed from where this report ends.

        All are asked at once: one supervisor that does not answer must not keep the others waiting. Raises `GangTooNew`
        when a newer DSec has started one of them.
        """
        seen = await asyncio.gather(*(self._observe(key, directory) for key, directory in self._directories()))
        return tuple(gang for gang in seen if gang is not None)

    async def _observe(self, key: GangKey, directory: GangDirectory) -> ObservedGang | None:
        order = read_json(directory.order)
        record = read_json(directory.supervisor)
        if order is None or record is None:
            return None
        for each in (order, record):
            gang_protocol.refuse_newer(each, f"attempt {key.attempt} of run {key.run_id}", upgrade="this worker")
        records, last = await self._so_far(key, directory, record)
        if not any(r["type"] == "gone" for r in records):
            self._follow(key, directory, after=last)
        return ObservedGang(
            key=key,
            placement=Placement.from_json(order["placement"]),
            launch={"adapter": "local", **record},
            events=tuple(event_of(key, r) for r in records),
        )

    async def _so_far(
        self, key: GangKey, directory: GangDirectory, record: dict[str, Any]
    ) -> tuple[list[dict[str, Any]], int]:
        while True:
            gone = read_json(directory.gone)
            if gone is not None:
                return gone["events"], 0
            try:
                status = await talk.call(Path(record["channel"]), {"op": "status"}, timeout_seconds=_ANSWER_SECONDS)
            except NotThere:
                if not processes.is_alive(supervisor_of(record)):
                    await self._bury(key, directory, record)
                else:
                    await asyncio.sleep(_RECONNECT_SECONDS)
            except ClusterError:  # it is there and does not answer (stopped, say): its file tells what it told so far
                events = read_events(directory.events)
                return events, max((event["seq"] for event in events), default=0)
            else:
                return status["events"], status["last"]

    def _directories(self) -> list[tuple[GangKey, GangDirectory]]:
        if not gangs_of(self._home).is_dir():
            return []
        found = []
        for path in sorted(gangs_of(self._home).iterdir()):
            run_id, _, attempt = path.name.rpartition("-")
            if attempt.isdigit() and (path / "order.json").exists():
                found.append((GangKey(run_id, int(attempt)), GangDirectory(path)))
        return found

    def _follow(self, key: GangKey, directory: GangDirectory, *, after: int) -> None:
        if key not in self._followed:
            self._followed[key] = asyncio.create_task(
                self._tell_until_gone(key, directory, after), name=f"follow {directory.path.name}"
            )

    async def _tell_until_gone(self, key: GangKey, directory: GangDirectory, after: int) -> None:
        """Put the gang's events into the queue. Whatever cannot be read now is read again: nobody else follows it."""
        while True:
            with suppress(ClusterError, OSError):
                record = read_json(directory.supervisor)
                if record is None:
                    return
                with suppress(ClusterError, OSError):
                    async for happened in talk.follow(Path(record["channel"]), after):
                        after = happened["seq"]
                        await self._events.put(event_of(key, happened))
                        if happened["type"] == "gone":
                            return
                if not processes.is_alive(supervisor_of(record)):
                    with suppress(ClusterError, OSError):
                        await self._bury(key, directory, record)
                gone = read_json(directory.gone)
                if gone is not None:
                    for happened in gone["events"]:
                        # Whoever buried it did not know how far the supervisor had counted: progress is told, not kept.
                        if happened["seq"] > after or happened["type"] in _ENDS:
                            await self._events.put(event_of(key, happened))
                    return
            await asyncio.sleep(_RECONNECT_SECONDS)

    async def _bury(self, key: GangKey, directory: GangDirectory, record: dict[str, Any]) -> None:
        await bury(key, directory, record, clock=self._clock)

    async def forget(self, key: GangKey) -> None:
        """Remove what was kept to tell the gang's end, its credentials and scratch files included. Logs stay.

        What cannot be removed now is tried again for as long as this cluster is open: nobody asks a second time.
        """
        directory = GangDirectory.of(self._home, key)
        task = self._followed.pop(key, None)
        if task is not None:
            task.cancel()
        try:
            clear_away(directory)
        except OSError:
            self._followed[key] = asyncio.create_task(
                _clear_away_later(directory), name=f"forget {directory.path.name}"
            )

    # --- the end --------------------------------------------------------------------------------------------------

    async def shutdown(self, *, evict: bool = False, grace_seconds: float = 5.0) -> int:
        """Stop every gang and the fork-server; no process is left, whatever session it moved to.

        With `evict` each gang first has its own grace to checkpoint and leave. Returns how many gangs were running.
        """
        ends = [self._end(key, directory, evict, grace_seconds) for key, directory in self._directories()]
        stopped = sum(await asyncio.gather(*ends))
        await self._fork_server.stop()
        await self.close()
        return stopped

    async def _end(self, key: GangKey, directory: GangDirectory, evict: bool, grace_seconds: float) -> bool:
        record, order = read_json(directory.supervisor), read_json(directory.order)
        if record is None or order is None or directory.gone.exists():
            return False
        if evict:
            patience = float(order["request"]["grace_seconds"])
            notice = Notice(
                kind=NoticeKind.DRAIN,
                reason="DSec is shutting down",
                deadline=self._clock.now() + patience,
                attempt=key.attempt,
            )
            await self.notify(key, notice)
            await self._wait_until_gone(directory, record, patience + 3.0)
        await self.stop(key, grace_seconds)
        if not await self._wait_until_gone(directory, record, grace_seconds + 3.0):
            processes.signal_process(supervisor_of(record), 9, at="cluster.supervisor.kill")
            await self._bury(key, directory, record)
        while leftovers_of(key, directory=directory.path, supervisor=supervisor_of(record)):
            kill_leftovers(key, directory=directory.path, supervisor=supervisor_of(record))
            await asyncio.sleep(0.02)
        return True

    async def _wait_until_gone(self, directory: GangDirectory, record: dict[str, Any], seconds: float) -> bool:
        deadline = self._clock.monotonic() + seconds
        while self._clock.monotonic() < deadline:
            if directory.gone.exists() and not processes.is_alive(supervisor_of(record)):
                return True
            await asyncio.sleep(0.02)
        return False

    async def close(self) -> None:
        """Stop following; the gangs run on."""
        for task in self._followed.values():
            task.cancel()
        await asyncio.gather(*self._followed.values(), return_exceptions=True)
        self._followed.clear()


async def _clear_away_later(directory: GangDirectory) -> None:
    while True:
        await asyncio.sleep(_RETRY_SECONDS)
        with suppress(OSError):
            clear_away(directory)
            return
