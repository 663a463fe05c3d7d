"""The supervisor: one per gang attempt, the only process that knows and decides how the gang lives and ends.

It outlives the worker and the fork-server. It forks the flow process and the members, opens the start barrier when
every member holds its devices, hands out notices and enforces their deadlines, stops the whole gang when one member
dies, lets the devices go as soon as no process can use them, and says `gone` only when no process is left and
nothing waits to be uploaded. Single-threaded on purpose: it forks.
"""

import json
import os
import signal
import socket
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dsec_blocks.gateways import files, processes
from dsec_blocks.gateways.clock import SystemClock
from dsec_blocks.gateways.processes import Sighting
from dsec_blocks.model import names
from dsec_blocks.model.notices import NoticeKind
from dsec_workers.clusters.local import census, children, engine, warmth
from dsec_workers.clusters.local.happenings import Happenings
from dsec_workers.clusters.local.layout import GangDirectory, devices_of, to_bytes
from dsec_workers.clusters.local.loop import Lines, Loop, Timer
from dsec_workers.clusters.local.member import Member
from dsec_workers.clusters.local.ranks import device_env
from dsec_workers.clusters.local.runs import FAILED_RUN_GRACE_SECONDS, GangRun
from dsec_workers.clusters.local.uploads import Uploader
from dsec_workers.clusters.protocol import LaunchOrder

KILL_AFTER_SECONDS = 2.0
"""Between the SIGTERM of a missed deadline and the SIGKILL."""
LOST_MEMBER_GRACE_SECONDS = 5.0
"""What a gang has to put itself in order after one of its members died."""
INTENT_TIMEOUT_SECONDS = 1.0
_SWEEP_INTERVAL_SECONDS = 0.02
_RETRY_SECONDS = 0.5


@dataclass(kw_only=True)
class _MemberState:
    """A member as its supervisor sees it."""

    pid: int
    line: Lines
    is_ready: bool = False
    is_released: bool = False
    exit: int | None = None


class Supervisor:
    """One attempt of one gang."""

    def __init__(self, *, home: Path, directory: GangDirectory, order: LaunchOrder, channel: Path) -> None:
        self.order = order
        self.directory = directory
        self.clock = SystemClock()
        self.loop = Loop(clock=self.clock, on_child_exit=self._child_ended)
        self.happenings = Happenings(loop=self.loop, clock=self.clock, path=directory.events)
        self.notice: dict[str, Any] | None = None
        self.stop_before: int | None = None
        self.run: GangRun | None = None
        self.is_open = False
        """Whether the start barrier has been opened."""
        self.is_ending = False
        self.push: Callable[[dict[str, Any]], None] = lambda _: None
        """Sends one message to every connection that said hello."""
        self.on_gone: Callable[[], None] = self.loop.stop
        self.uploader = Uploader(loop=self.loop, spool=directory.spool, start=self._fork_uploader)
        self._home = home
        self._members: dict[int, _MemberState] = {}
        self._flow_pid = 0
        self._flow_line: Lines | None = None
        self._flow_exit: int | None = None
        self._flow_terminating = False
        self._runs = 0
        self._lost_member: int | None = None
        self._start_failure: str | None = None
        self._denied: dict[int, str] = {}
        self._deadline: Timer | None = None
        self._kill: Timer | None = None
        self._sweep: Timer | None = None
        self._asked_to_leave: set[int] = set()
        self._told_gone = False
        self.env = {
            **order.env,
            **device_env(order.placement.members[0].devices),
            names.ENV_RUN_ID: order.key.run_id,
            names.ENV_ATTEMPT: str(order.key.attempt),
            names.ENV_CHANNEL: str(channel),
            names.ENV_REQUEST: _compact(order.request.to_json()),
            names.ENV_PLACEMENT: _compact(order.placement.to_json()),
            names.ENV_MEMBER: "0",
            names.ENV_SPOOL: str(directory.spool),
        }

    # --- starting -------------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Fork the flow process and the members; the barrier opens when all members are ready."""
        for made in (self.directory.spool, self.directory.runs, self.directory.work, devices_of(self._home)):
            made.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._fork_flow()
        for index, _ in enumerate(self.order.placement.members):
            self._fork_member(index)
        self.loop.after(self.order.start_timeout_seconds, self._start_timed_out)

    def _fork_flow(self) -> None:
        ours, theirs = socket.socketpair()
        pid = processes.fork(at="supervisor.flow.fork")
        if pid == 0:
            self.loop.leave_in_child()
            children.leave(children.exit_code_of(lambda: self._be_flow(theirs)))
        theirs.close()
        _own_group(pid)
        self._flow_pid = pid
        self._flow_line = Lines(self.loop, ours, on_message=self._flow_said, on_close=lambda _: self._signal_flow())

    def _be_flow(self, line: socket.socket) -> int:
        children.stand_apart(log=self.directory.log("flow"), keep=[line.fileno()])
        command = self.order.command is not None
        defaults = {"PREFECT__FLOW_RUN_ID": self.order.key.run_id}
        if command:
            # Only the `flow-run execute` command reads this: an evicted run leaves its state to the worker.
            defaults["PREFECT_FLOW_RUN_EXECUTE_SIGTERM_BEHAVIOR"] = "relinquish"
        children.take_environment({**defaults, **self.env})
        engine.enter(Path(self.order.working_dir) if self.order.working_dir else self.directory.work)
        control = engine.Control(line)
        return engine.run_command(self.order, control) if command else engine.run_engine(self.order, control)

    def _fork_member(self, index: int) -> None:
        ours, theirs = socket.socketpair()
        pid = processes.fork(at="supervisor.member.fork")
        if pid == 0:
            self.loop.leave_in_child()
            children.leave(children.exit_code_of(lambda: self._be_member(index, theirs)))
        theirs.close()
        _own_group(pid)
        line = Lines(self.loop, ours, on_message=lambda _, message: self._member_said(index, message), on_close=_ignore)
        self._members[index] = _MemberState(pid=pid, line=line)

    def _be_member(self, index: int, line: socket.socket) -> int:
        children.stand_apart(log=self.directory.log(f"member-{index}"), keep=[line.fileno()])
        children.take_environment({**self.env, names.ENV_MEMBER: str(index)})
        engine.enter(Path(self.order.working_dir) if self.order.working_dir else self.directory.work)
        return Member(
            index=index,
            devices=self.order.placement.members[index].devices,
            locks_directory=devices_of(self._home),
            gang=self.directory.path,
            blocking=self.order.hold_start,
        ).serve(line)

    def _fork_uploader(self) -> int:
        pid = processes.fork(at="supervisor.uploader.fork")
        if pid == 0:
            self.loop.leave_in_child()
            children.leave(children.exit_code_of(self._be_uploader))
        return pid

    def _be_uploader(self) -> int:
        children.stand_apart(log=self.directory.log("uploader"), keep=[], new_session=True)
        children.take_environment(self.env)
        warmth.rebuild_prefect_context()
        from dsec_blocks.checkpoints import uploader

        return uploader.main(self.directory.spool, self.env[names.ENV_CHANNEL]) or 0

    def _start_timed_out(self) -> None:
        if self.is_open or self.is_ending:
            return
        missing = [str(index) for index, member in self._members.items() if not member.is_ready]
        self._fail_start(
            f"member {', '.join(missing)} did not get its devices within {self.order.start_timeout_seconds:g} s"
        )

    def _fail_start(self, why: str) -> None:
        if not self.is_open and not self.is_ending:
            self._start_failure = why
            self.end(grace_seconds=KILL_AFTER_SECONDS)

    def _member_said(self, index: int, message: dict[str, Any]) -> None:
        member = self._members[index]
        match message["op"]:
            case "ready":
                member.is_ready = True
                if all(m.is_ready for m in self._members.values()) and not self.is_ending and not self.is_open:
                    self._open_barrier()
            case "denied":
                self._denied[index] = message["device"]
                node = self.order.placement.members[index].node
                self._fail_start(f"device {message['device']} on node {node} is held by another process")
            case "rank_started":
                if self.run is not None:
                    self.run.pids[message["rank"]] = message["pid"]
                    if self.is_ending or self.run.has_failed:
                        processes.signal_group(message["pid"], signal.SIGTERM, at="supervisor.late_rank.term")
            case "rank_exit":
                self._rank_ended(message["rank"], message["exit"])

    def _open_barrier(self) -> None:
        self.is_open = True
        if self._flow_line is not None:
            self._flow_line.send({"op": "go"})
        self.happenings.tell("started")

    # --- gang.run -------------------------------------------------------------------------------------------------

    def start_run(self, run: GangRun, orders: dict[int, dict[str, Any]]) -> None:
        """Have the members start the ranks of `run`."""
        self.run = run
        run.results.mkdir(parents=True, exist_ok=True)
        for index, message in orders.items():
            self._members[index].line.send(message)

    def next_run_number(self) -> int:
        """Runs are numbered from 1."""
        self._runs += 1
        return self._runs

    def abandon_run(self) -> None:
        """Whoever called `gang.run` is not there any more: stop its ranks."""
        if self.run is not None and self.notice is None:
            self._stop_ranks(self.run)

    def _rank_ended(self, rank: int, code: int) -> None:
        run = self.run
        if run is None:
            return
        failed_before = run.has_failed
        run.ended(rank, code)
        if run.is_over:
            self.run = None
            run.tell({"done": True, "evicted": self.notice is not None and any(run.exits.values())})
        elif run.has_failed and not failed_before and self.notice is None:
            self._stop_ranks(run)
        self.advance()

    def _stop_ranks(self, run: GangRun) -> None:
        for group in list(run.pids.values()):
            processes.signal_group(group, signal.SIGTERM, at="supervisor.failed_run.term")
        self.loop.after(FAILED_RUN_GRACE_SECONDS, lambda: self._kill_ranks(run))

    def _kill_ranks(self, run: GangRun) -> None:
        for group in list(run.pids.values()):
            processes.signal_group(group, signal.SIGKILL, at="supervisor.failed_run.kill")

    # --- notices --------------------------------------------------------------------------------------------------

    @property
    def is_acknowledged(self) -> bool:
        """Whether the gang has begun to act on its notice."""
        return self.stop_before is not None or self.happenings.has("snapshotting") or self._devices_are_leaving

    def give_notice(self, notice: dict[str, Any]) -> None:
        """Tell everybody at once, and enforce the deadline from here on, whoever else dies."""
        if self.notice is not None and self.notice["kind"] == NoticeKind.CANCEL:
            notice = {**notice, "kind": NoticeKind.CANCEL.value, "reason": self.notice["reason"]}
        self.notice = notice
        try:
            files.write(self.directory.notice, to_bytes(notice), at="supervisor.notice.write")
        except OSError as error:  # it only tells a successor of this supervisor why the gang left
            print(f"the notice could not be written: {error}", flush=True)
        self.push({"push": "notice", "notice": notice})
        self._send_intent()
        if self._deadline is not None:
            self._deadline.cancel()
        self._deadline = self.loop.after(notice["deadline"] - self.clock.now(), self._deadline_missed)
        if not self.is_open:
            self.end(grace_seconds=KILL_AFTER_SECONDS)  # no user code has run: nothing to wait for
        self.advance()

    def withdraw_notice(self) -> bool:
        """Take the notice back, if nobody has acted on it."""
        if self.notice is None or self.is_ending or self.is_acknowledged:
            return False
        files.remove(self.directory.notice, at="supervisor.notice.remove")
        self.notice = None
        if self._deadline is not None:
            self._deadline.cancel()
        self._send_intent()
        self.push({"push": "withdrawn"})
        return True

    def publish_stop(self, step: int) -> int | None:
        """Make the step to stop before durable; None when there is no notice (any more) to stop for."""
        if self.notice is None:
            return None
        if self.stop_before is None:
            content = to_bytes({"step": step, "attempt": self.order.key.attempt})
            files.write(self.directory.stop_before, content, at="supervisor.stop_before.write")
            self.stop_before = step
        return self.stop_before

    def _deadline_missed(self) -> None:
        self.end(grace_seconds=KILL_AFTER_SECONDS)

    # --- ending ---------------------------------------------------------------------------------------------------

    def end(self, *, grace_seconds: float) -> None:
        """Stop all of the gang but the uploader: SIGTERM now, SIGKILL after the grace. May be called again."""
        self.is_ending = True
        self._terminate_flow()
        for member in self._members.values():
            if not member.is_ready and member.exit is None:  # blocked on its locks
                processes.signal_group(member.pid, signal.SIGTERM, at="supervisor.waiting_member.term")
        if self.run is not None:
            for group in list(self.run.pids.values()):
                processes.signal_group(group, signal.SIGTERM, at="supervisor.rank.term")
        if self._kill is not None:
            self._kill.cancel()
        self._kill = self.loop.after(grace_seconds, self._kill_all)
        self.advance()

    def _terminate_flow(self) -> None:
        """SIGTERM to the flow process, once it knows what the signal means (or does not answer)."""
        if self._flow_exit is not None or self._flow_terminating:
            return
        self._flow_terminating = True
        if self._send_intent():
            self.loop.after(INTENT_TIMEOUT_SECONDS, self._signal_flow)
        else:
            self._signal_flow()

    def _send_intent(self) -> bool:
        if self._flow_line is None or not self._flow_line.is_open:
            return False
        kind = self.notice["kind"] if self.notice else None
        intent = "cancel" if kind == NoticeKind.CANCEL else "relinquish" if kind or self.is_ending else None
        self._flow_line.send({"op": "intent", "intent": intent})
        return True

    def _flow_said(self, _line: Lines, message: dict[str, Any]) -> None:
        if message["op"] == "intent":
            self._signal_flow()

    def _signal_flow(self) -> None:
        if self._flow_terminating and self._flow_exit is None:
            self._flow_terminating = False
            processes.signal_group(self._flow_pid, signal.SIGTERM, at="supervisor.flow.term")

    def _kill_all(self) -> None:
        spared = self._members_pids() | self.uploader.pids
        doomed = [row.pid for row in self._strays(spared)]
        unready = [m.pid for m in self._members.values() if m.exit is None and not m.is_ready]
        processes.signal_all([*doomed, *unready], signal.SIGKILL, at="supervisor.kill")
        if self._flow_exit is None or self.run is not None or doomed:
            self._kill = self.loop.after(_SWEEP_INTERVAL_SECONDS * 5, self._kill_all)
        self.advance()

    def _child_ended(self, pid: int, status: int) -> None:
        if pid == self._flow_pid:
            self._flow_exit = status
            if not self.is_open:
                self._fail_start(f"the flow's process ended with exit {status} before the start barrier; see flow.log")
        elif not self.uploader.ended(pid, status):
            for index, member in self._members.items():
                if member.pid == pid:
                    member.exit = status
                    self._member_ended(index, member)
            self._orphaned_rank_ended(pid, status)
        self.advance()

    def _member_ended(self, index: int, member: _MemberState) -> None:
        member.line.close()
        if member.is_released or index in self._denied:
            return
        if self.is_ending:
            self._give_up_ranks_of(index)
            return
        self._lost_member = index
        if not self.is_open:
            self._start_failure = f"member {index} died (exit {member.exit}) before the start barrier"
        self.end(grace_seconds=LOST_MEMBER_GRACE_SECONDS)
        self._give_up_ranks_of(index)

    def _orphaned_rank_ended(self, pid: int, status: int) -> None:
        """A rank that has become our child, because its member died."""
        rank = next((rank for rank, known in self.run.pids.items() if known == pid), None) if self.run else None
        if rank is not None:
            self._rank_ended(rank, status)

    def _give_up_ranks_of(self, index: int) -> None:
        """A dead member reports nothing: of its ranks, those that do not run are taken for killed."""
        for rank in self.run.ranks if self.run is not None else ():
            run = self.run
            if run is not None and rank.member == index and rank.rank not in run.exits:
                pid = run.pids.get(rank.rank)
                if pid is None or processes.sighting(pid) is None:
                    self._rank_ended(rank.rank, -signal.SIGKILL)

    def advance(self) -> None:
        """Go as far towards the end as what is known allows; called after everything that may change it."""
        if self._told_gone:
            return
        if self._flow_exit is not None and not self.is_ending:
            self.end(grace_seconds=KILL_AFTER_SECONDS)
            return
        if self._devices_may_leave and not self._devices_are_leaving:
            if any(True for _ in self._device_strays()):
                self._sweep_again(self._kill_device_strays)
                return
            for member in self._members.values():
                member.is_released = True
                member.line.send({"op": "release"})
        if all(m.exit is not None for m in self._members.values()):
            if not self.happenings.has("devices_released"):
                self.happenings.tell("devices_released")
            if self._flow_exit is not None:
                self._leave_for_good()

    def _leave_for_good(self) -> None:
        strays = self._strays(self.uploader.pids)
        if strays:
            # Children that outlived the flow process: asked once, then killed by _kill_all.
            asked, self._asked_to_leave = self._asked_to_leave, {row.pid for row in strays}
            pids = [row.pid for row in strays if row.pid not in asked]
            processes.signal_all(pids, signal.SIGTERM, at="supervisor.stray.term")
            self._sweep_again(self.advance)
            return
        if not self.uploader.finish(self.advance):
            return
        self._told_gone = True
        commit = self.happenings.last("committed")
        self.happenings.tell(
            "gone",
            flow_exit=self._flow_exit if self.is_open else None,
            member_exits={str(index): member.exit for index, member in self._members.items()},
            lost_member=self._lost_member,
            notice=self.notice["kind"] if self.notice else None,
            last_commit_step=commit["step"] if commit else None,
            start_failure=self._start_failure,
        )
        self._write_the_end()

    def _write_the_end(self) -> None:
        record = {"events": self.happenings.records}
        try:
            files.write(self.directory.gone, to_bytes(record), at="supervisor.exit.write")
        except OSError as error:  # exit codes are told once: wait until there is room for them
            print(f"the gang's end could not be written, trying again: {error}", flush=True)
            self.loop.after(_RETRY_SECONDS, self._write_the_end)
            return
        self.on_gone()

    def stop_uploader(self, grace_seconds: float) -> None:
        """Give up what is not uploaded yet."""
        self.uploader.stop(grace_seconds)

    # --- who is there ---------------------------------------------------------------------------------------------

    @property
    def _devices_are_leaving(self) -> bool:
        return any(member.is_released for member in self._members.values())

    @property
    def _devices_may_leave(self) -> bool:
        """No rank runs, and the flow process, if it still runs, has its devices used by ranks only."""
        if self.run is not None:
            return False
        return self._flow_exit is not None or (self.notice is not None and self._runs > 0 and self.is_open)

    def _members_pids(self) -> set[int]:
        return {member.pid for member in self._members.values() if member.exit is None}

    def _strays(self, spared: set[int]) -> list[Sighting]:
        return census.strays(spared=spared, uploader=self.uploader.pids)

    def _device_strays(self) -> list[Sighting]:
        flow = {self._flow_pid} if self._flow_exit is None else set()
        return census.device_strays(
            spared=self._members_pids(), flow=flow, uploader=self.uploader.pids, locks=devices_of(self._home)
        )

    def _kill_device_strays(self) -> None:
        processes.signal_all([row.pid for row in self._device_strays()], signal.SIGKILL, at="supervisor.device.kill")
        self.loop.after(_SWEEP_INTERVAL_SECONDS, self.advance)

    def _sweep_again(self, what: Callable[[], None]) -> None:
        if self._sweep is not None:
            self._sweep.cancel()
        self._sweep = self.loop.after(_SWEEP_INTERVAL_SECONDS, what)


def _own_group(pid: int) -> None:
    with suppress(OSError):  # the child does the same; whoever is first, a signal to the group finds it
        os.setpgid(pid, pid)


def _ignore(_line: Lines) -> None:
    return None


def _compact(value: Any) -> str:
    return json.dumps(value, separators=(",", ":"))
