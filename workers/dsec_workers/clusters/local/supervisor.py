"""The supervisor: one per gang attempt, the only process that knows and decides how the gang lives and ends.

It outlives the worker and the fork-server. It forks the flow process and the members, opens the start barrier when
every member holds its devices, hands out notices and enforces their deadlines, stops the whole gang when one member
dies, lets the devices go as soon as no process can use them, and says `gone` only when no process is left and
nothing waits to be uploaded. Single-threaded on purpose: it forks.
"""

import signal
from collections.abc import Callable, Collection
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from dsec_blocks.gateways import processes
from dsec_blocks.gateways.clock import SystemClock
from dsec_blocks.model.gangs import Placement
from dsec_blocks.model.notices import NoticeKind
from dsec_workers.clusters.local import census, children
from dsec_workers.clusters.local.bodies import Bodies
from dsec_workers.clusters.local.current_run import CurrentRun
from dsec_workers.clusters.local.flow_process import FlowProcess
from dsec_workers.clusters.local.happenings import Happenings
from dsec_workers.clusters.local.last_word import LastWord
from dsec_workers.clusters.local.layout import GangDirectory, devices_of
from dsec_workers.clusters.local.loop import Loop, Timer
from dsec_workers.clusters.local.members import Line, Members
from dsec_workers.clusters.local.runs import GangRun
from dsec_workers.clusters.local.standing_notice import StandingNotice
from dsec_workers.clusters.local.uploads import Uploader
from dsec_workers.clusters.protocol import LaunchOrder

KILL_AFTER_SECONDS = 2.0
"""Between the SIGTERM of a missed deadline and the SIGKILL."""
LOST_MEMBER_GRACE_SECONDS = 5.0
"""What a gang has to put itself in order after one of its members died."""
_SWEEP_INTERVAL_SECONDS = 0.02


class Supervisor:
    """One attempt of one gang. Members `elsewhere` are not forked here: they join (`member_joined`)."""

    def __init__(
        self,
        *,
        home: Path,
        directory: GangDirectory,
        order: LaunchOrder,
        channel: Path,
        elsewhere: Collection[int] = (),
    ) -> None:
        self.order = order
        self.directory = directory
        self.loop = loop = Loop(clock=SystemClock(), on_child_exit=self._child_ended)
        self.happenings = Happenings(loop=loop, clock=SystemClock(), path=directory.events)
        self.notice = StandingNotice(
            loop=loop,
            clock=SystemClock(),
            directory=directory,
            attempt=order.key.attempt,
            on_deadline=lambda: self.end(grace_seconds=KILL_AFTER_SECONDS),
        )
        self._members = Members(loop, on_message=self.member_said)
        self._elsewhere = frozenset(elsewhere)
        self.runs = CurrentRun(
            loop,
            is_noticed=lambda: self.notice.current is not None,
            on_rank_end=lambda: self.advance(),
            tell_elsewhere=self._members.tell_elsewhere,
        )
        self.uploader = Uploader(loop=loop, spool=directory.spool, start=self._fork_uploader)
        self.is_open = False
        """Whether the start barrier has been opened."""
        self.is_ending = False
        self.companions: Collection[int] = ()
        """Children of whoever hosts this supervisor that are not the gang's: they leave when they like."""
        self.push: Callable[[dict[str, Any]], None] = lambda _: None
        """Sends one message to every connection that said hello."""
        self.last_word = LastWord(loop=loop, happenings=self.happenings, directory=directory, on_written=loop.stop)
        self._locks = devices_of(home)
        self._flow = FlowProcess(loop)
        self._lost_member: int | None = None
        self._start_failure: str | None = None
        self._has_timed_out = False
        self._kill: Timer | None = None
        self._sweep: Timer | None = None
        self._asked_to_leave: set[int] = set()
        self._bodies = Bodies(order=order, directory=directory, locks=self._locks, channel=channel)

    # --- starting -------------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Fork the flow process and the members; the barrier opens when all members are ready."""
        for made in (self.directory.spool, self.directory.runs, self.directory.work, self._locks):
            made.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._flow.fork(self._bodies.flow)
        for index, _ in enumerate(self.order.placement.members):
            if index in self._elsewhere:
                self._members.expect(index)
            else:
                self._members.fork(index, partial(self._bodies.member, index=index))
        self.loop.after(self.order.start_timeout_seconds, self._start_timed_out)

    def _fork_uploader(self) -> int:
        pid = processes.fork(at="supervisor.uploader.fork")
        if pid == 0:
            self.loop.leave_in_child()
            children.leave(children.exit_code_of(self._bodies.uploader))
        return pid

    def _start_timed_out(self) -> None:
        missing = ", ".join(map(str, self._members.unready))
        self.fail_start(f"member {missing} did not get its devices within {self.order.start_timeout_seconds:g} s")

    def fail_start(self, why: str) -> None:
        """The gang cannot start; what there is of it is stopped. Nothing once it has started."""
        if not self.is_open and not self.is_ending:
            self._start_failure = why
            self.end(grace_seconds=KILL_AFTER_SECONDS)

    def member_joined(self, index: int, line: Line, devices: tuple[str, ...]) -> bool:
        """A member elsewhere is there, with the devices that it was given; False when it is not wanted (any more)."""
        if not self._members.joined(index, line):
            return False
        members = list(self.order.placement.members)
        members[index] = replace(members[index], devices=devices)
        self.order = replace(self.order, placement=Placement(members=tuple(members)))
        return True

    def member_left(self, index: int, status: int) -> None:
        """A member elsewhere has ended, or nobody can reach it any more."""
        if self._members.left(index, status):
            self._member_ended(index)
            self.advance()

    def member_said(self, index: int, message: dict[str, Any]) -> None:
        """Hear what a member tells: that it has its devices, that a rank started or ended."""
        member = self._members[index]
        match message["op"]:
            case "ready":
                member.is_ready = True
                if not self._members.unready and not self.is_ending and not self.is_open:
                    self._open_barrier()
            case "denied":
                member.is_denied = True
                node = self.order.placement.members[index].node
                self.fail_start(f"device {message['device']} on node {node} is held by another process")
            case "rank_started":
                pid = None if index in self._elsewhere else message["pid"]
                self.runs.rank_started(message["rank"], pid, is_ending=self.is_ending)
            case "rank_exit":
                self.runs.rank_ended(message["rank"], message["exit"])

    def _open_barrier(self) -> None:
        self.is_open = True
        self._flow.let_through()
        self.happenings.tell("started")
        longest = self.order.request.max_runtime_seconds
        if longest is not None:
            self.loop.after(longest, self._time_is_up)

    def _time_is_up(self) -> None:
        """Its longest run time is over. Measured here, where no wall clock and no worker's end can change it."""
        if not self.is_ending:
            self._has_timed_out = True
            self.uploader.stop(self.order.request.grace_seconds)
            self.end(grace_seconds=self.order.request.grace_seconds)

    def start_run(self, run: GangRun, orders: dict[int, dict[str, Any]]) -> None:
        """Have the members start the ranks of `run`."""
        self.runs.run = run
        run.results.mkdir(parents=True, exist_ok=True)
        for index, message in orders.items():
            line = self._members[index].line
            if line is not None:
                line.send(message)

    # --- notices --------------------------------------------------------------------------------------------------

    @property
    def is_acknowledged(self) -> bool:
        """Whether the gang has begun to act on its notice."""
        acts = self.notice.stop_before is not None or self.happenings.has("snapshotting")
        return acts or self._members.are_leaving

    def give_notice(self, notice: dict[str, Any]) -> None:
        """Tell everybody at once, and enforce the deadline from here on, whoever else dies."""
        self.push({"push": "notice", "notice": self.notice.take(notice)})
        self._flow.tell(self._intent)
        if not self.is_open:
            self.end(grace_seconds=KILL_AFTER_SECONDS)  # no user code has run: nothing to wait for
        self.advance()

    def withdraw_notice(self) -> bool:
        """Take the notice back, if nobody has acted on it."""
        if self.notice.current is None or self.is_ending or self.is_acknowledged:
            return False
        self.notice.drop()
        self._flow.tell(self._intent)
        self.push({"push": "withdrawn"})
        return True

    @property
    def _intent(self) -> str | None:
        """What a SIGTERM to the flow process would mean now."""
        if self.notice.kind == NoticeKind.CANCEL:
            return "cancel"
        return "relinquish" if self.notice.kind or self.is_ending else None

    # --- ending ---------------------------------------------------------------------------------------------------

    def end(self, *, grace_seconds: float) -> None:
        """Stop all of the gang but the uploader: SIGTERM now, SIGKILL after the grace. May be called again."""
        self.is_ending = True
        self._flow.terminate(self._intent)
        self._members.stop_waiting()
        self.runs.terminate()
        if self._kill is not None:
            self._kill.cancel()
        self._kill = self.loop.after(grace_seconds, self._kill_all)
        self.advance()

    def _kill_all(self) -> None:
        doomed = [row.pid for row in census.strays(spared=self._not_strays, uploader=self.uploader.pids)]
        self._members.tell_elsewhere({"op": "kill"})
        unready = [m.pid for m in self._members.unready.values() if m.exit is None and m.pid is not None]
        processes.signal_all([*doomed, *unready], signal.SIGKILL, at="supervisor.kill")
        if self._flow.exit is None or self.runs.run is not None or doomed:
            self._kill = self.loop.after(_SWEEP_INTERVAL_SECONDS * 5, self._kill_all)
        self.advance()

    def _child_ended(self, pid: int, status: int) -> None:
        if pid == self._flow.pid:
            self._flow.exit = status
            self.fail_start(f"the flow's process ended with exit {status} before the start barrier; see flow.log")
        elif not self.uploader.ended(pid, status):
            index = self._members.ended(pid, status)
            if index is not None:
                self._member_ended(index)
            self.runs.orphan_ended(pid, status)
        self.advance()

    def _member_ended(self, index: int) -> None:
        member = self._members[index]
        if member.is_released or member.is_denied:
            return
        if not self.is_ending:
            self._lost_member = index
            if not self.is_open:
                self._start_failure = f"member {index} died (exit {member.exit}) before the start barrier"
            self.end(grace_seconds=LOST_MEMBER_GRACE_SECONDS)
        self.runs.member_died(index)

    def advance(self) -> None:
        """Go as far towards the end as what is known allows; called after everything that may change it."""
        if self.last_word.is_said:
            return
        if self._flow.exit is not None and not self.is_ending:
            self.end(grace_seconds=KILL_AFTER_SECONDS)
            return
        if self._devices_may_leave and not self._members.are_leaving:
            if self._device_strays():
                self._sweep_again(self._kill_device_strays)
                return
            self._members.release()
        if self._members.have_ended:
            if not self.happenings.has("devices_released"):
                self.happenings.tell("devices_released")
            if self._flow.exit is not None:
                self._leave_for_good()

    @property
    def _devices_may_leave(self) -> bool:
        """No rank runs, and the flow process, if it still runs, has its devices used by ranks only."""
        if self.runs.run is not None:
            return False
        return self._flow.exit is not None or (self.notice.current is not None and self.runs.count > 0 and self.is_open)

    @property
    def _not_strays(self) -> set[int]:
        return {*self._members.pids, *self.companions}

    def _leave_for_good(self) -> None:
        strays = census.strays(spared=self.companions, uploader=self.uploader.pids)
        if strays:
            # Children that outlived the flow process: asked once, then killed by _kill_all.
            asked, self._asked_to_leave = self._asked_to_leave, {row.pid for row in strays}
            pids = [row.pid for row in strays if row.pid not in asked]
            processes.signal_all(pids, signal.SIGTERM, at="supervisor.stray.term")
            self._sweep_again(self.advance)
        elif self.uploader.finish(self.advance):
            self.last_word.say(
                flow_exit=self._flow.exit if self.is_open else None,
                member_exits=self._members.exits,
                lost_member=self._lost_member,
                notice=self.notice.kind,
                start_failure=self._start_failure,
                timed_out=self._has_timed_out,
            )

    def _device_strays(self) -> list[int]:
        flow = {self._flow.pid} if self._flow.exit is None else set()
        uploader = self.uploader.pids
        found = census.device_strays(spared=self._not_strays, flow=flow, uploader=uploader, locks=self._locks)
        return [row.pid for row in found]

    def _kill_device_strays(self) -> None:
        processes.signal_all(self._device_strays(), signal.SIGKILL, at="supervisor.device.kill")
        self.loop.after(_SWEEP_INTERVAL_SECONDS, self.advance)

    def _sweep_again(self, what: Callable[[], None]) -> None:
        if self._sweep is not None:
            self._sweep.cancel()
        self._sweep = self.loop.after(_SWEEP_INTERVAL_SECONDS, what)
