"""A member's outpost other than the first: holds the member, and passes on what is said between it and the gang.

It decides nothing. When its line to member 0's outpost breaks, its ranks are stopped and it leaves: nobody could tell
it any more that its devices are wanted elsewhere.
"""

import base64
import signal
import socket
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from dsec_blocks.gateways import files, processes
from dsec_blocks.gateways.clock import SystemClock
from dsec_blocks.model import gang_protocol
from dsec_blocks.model.errors import ClusterError
from dsec_blocks.model.gangs import Placement
from dsec_blocks.model.notices import NoticeKind
from dsec_workers.clusters.kubernetes.outpost.door import Door
from dsec_workers.clusters.kubernetes.outpost.identity import Identity
from dsec_workers.clusters.kubernetes.outpost.logs import LogTail
from dsec_workers.clusters.kubernetes.outpost.observed import observed_devices
from dsec_workers.clusters.kubernetes.outpost.parcels import Couriers
from dsec_workers.clusters.kubernetes.outpost.relay import Relay
from dsec_workers.clusters.kubernetes.outpost.shipping import Shipping
from dsec_workers.clusters.local import census, children, warmth
from dsec_workers.clusters.local.bodies import Bodies
from dsec_workers.clusters.local.forkserver import listen
from dsec_workers.clusters.local.layout import GangDirectory, devices_of, socket_path
from dsec_workers.clusters.local.loop import Lines, Loop
from dsec_workers.clusters.local.rank import error_file, result_file

EXIT_ALONE = 71
"""Member 0's outpost never called, or went away."""
_ORPHAN_GRACE_SECONDS = 5.0
_SWEEP_SECONDS = 0.02


def follow(identity: Identity) -> int:
    """Hold the member until it is let go; the container's exit code."""
    door = Door(address=identity.address, port=identity.port, token=identity.token)
    processes.adopt_orphans()
    return Follower(identity, door).run()


class Follower:
    """One member's outpost."""

    def __init__(self, identity: Identity, door: Door) -> None:
        self._identity = identity
        self._door = door
        self._loop = Loop(clock=SystemClock(), on_child_exit=self._child_ended)
        self._directory = GangDirectory.of(identity.home, identity.key)
        self._couriers = Couriers(self._loop, self._directory.path, token=identity.token)
        self._shipping = Shipping(self._loop, self._directory.path, run_id=identity.key.run_id, env=identity.order.env)
        self._leader: Lines | None = None
        self._leader_at = ("", 0)
        self._member: Lines | None = None
        self._member_pid: int | None = None
        self._ranks: dict[int, int] = {}
        """rank → pid"""
        self._results: Path = self._directory.runs
        self._code = EXIT_ALONE
        self._is_leaving = False
        self._is_alone = False
        """Member 0's outpost went away before it let this one go."""
        self._relay: Relay | None = None

    def run(self) -> int:
        """Serve until the member has left."""
        directory = self._directory
        for made in (directory.path, directory.spool, directory.runs, directory.work, devices_of(self._identity.home)):
            made.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._door.open(self._loop, {"leader": self._enlist})
        signal.signal(signal.SIGTERM, lambda *_: self._loop.soon(self._asked_to_stop))
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        warmth.import_modules()  # once, while nobody has called yet: each of its ranks would, and what ships their logs
        warmth.share_tls_contexts()
        tail = LogTail(self._loop, directory.path)
        tail.start()
        self._shipping.start()
        self._loop.after(self._identity.order.start_timeout_seconds + 60.0, self._nobody_called)
        self._loop.run()
        tail.flush()
        self._shipping.finish()
        return self._code

    # --- the leader -----------------------------------------------------------------------------------------------

    def _enlist(self, connection: socket.socket, greeting: dict[str, Any]) -> Mapping[str, Any] | None:
        identity = self._identity
        if self._leader is not None or self._is_leaving:
            raise ClusterError(f"member {identity.member} is enlisted already")
        if (greeting["attempt"], greeting["member"]) != (identity.key.attempt, identity.member):
            raise ClusterError(
                f"this is member {identity.member} of attempt {identity.key.attempt}, not member {greeting['member']} "
                f"of attempt {greeting['attempt']}"
            )
        gang_protocol.refuse_newer(greeting, "member 0's outpost", upgrade="the DSec in this member's image")
        members = list(Placement.from_json(greeting["placement"]).members)
        devices = observed_devices(members[identity.member].devices, identity.order.env)
        members[identity.member] = replace(members[identity.member], devices=devices)
        order = replace(identity.order, placement=Placement(members=tuple(members)))
        channel = socket_path(identity.home, self._directory.path.name)
        self._leader_at = (str(greeting["address"]), int(greeting["port"]))
        self._leader = Lines(self._loop, connection, on_message=self._told, on_close=lambda _: self._orphaned())
        self._leader.send({"ok": True, **gang_protocol.told(greeting), "devices": list(devices)})
        self._relay = Relay(
            self._loop, listen(channel), to=self._leader_at, token=identity.token, deliver=self._deliver_snapshot
        )
        bodies = Bodies(order=order, directory=self._directory, locks=devices_of(identity.home), channel=channel)
        self._member_pid, ours = children.fork_with_line(
            self._loop, partial(bodies.member, index=identity.member), at="outpost.member.fork"
        )
        self._member = Lines(self._loop, ours, on_message=self._member_said, on_close=lambda _: None)
        return None

    def _told(self, _line: Lines, message: dict[str, Any]) -> None:
        match message["op"]:
            case "run":
                self._start_ranks(message)
            case "term":
                self._signal_ranks(signal.SIGTERM)
            case "kill":
                self._signal_ranks(signal.SIGKILL)
                self._kill_strays()
            case "stop_waiting":
                if self._member_pid is not None:
                    processes.signal_group(self._member_pid, signal.SIGTERM, at="outpost.waiting_member.term")
            case "release":
                self._release()

    def _start_ranks(self, message: dict[str, Any]) -> None:
        call = dict(message["call"])
        self._results = self._directory.runs / str(message["run"])
        files.make_directory(self._results)
        if "content" in call:
            path = self._results / "call.pickle"
            files.write(path, base64.b64decode(call.pop("content")), at="outpost.call.write")
            call["path"] = str(path)
        if call.get("cwd") and not Path(call["cwd"]).is_dir():
            call.pop("cwd")  # the leader's own working directory: this container has another
        if self._member is not None:
            self._member.send({**message, "call": call, "results": str(self._results)})

    def _orphaned(self) -> None:
        if self._is_leaving:
            return
        print("member 0's outpost is gone: the ranks here are stopped", flush=True)
        self._is_alone = True
        self._signal_ranks(signal.SIGTERM)
        self._loop.after(_ORPHAN_GRACE_SECONDS if self._ranks else 0.0, self._release)

    def _nobody_called(self) -> None:
        if self._leader is None:
            print("member 0's outpost never called", flush=True)
            self._loop.stop()

    def _asked_to_stop(self) -> None:
        """SIGTERM: the whole gang leaves, with its grace; member 0 says what that means."""
        if self._leader is None:
            self._loop.stop()
            return
        grace = self._identity.order.request.grace_seconds
        notice = {
            "kind": NoticeKind.DRAIN.value,
            "reason": "its pod was told to stop",
            "deadline": SystemClock().now() + grace,
            "attempt": self._identity.key.attempt,
        }
        self._leader.send({"op": "leaving", "notice": notice})

    # --- the member -----------------------------------------------------------------------------------------------

    def _member_said(self, _line: Lines, message: dict[str, Any]) -> None:
        match message["op"]:
            case "rank_started":
                self._ranks[message["rank"]] = message["pid"]
            case "rank_exit":
                self._ranks.pop(message["rank"], None)
                found = [where(self._results, message["rank"]) for where in (result_file, error_file)]
                self._couriers.bring(
                    [path for path in found if path.exists()],
                    to=self._leader_at,
                    then=lambda arrived: self._rank_ended(message, arrived),
                )
                return
        self._tell_leader(message)

    def _rank_ended(self, message: dict[str, Any], arrived: bool) -> None:
        if not arrived:
            print(f"what rank {message['rank']} returned could not be brought to member 0; see parcels.log", flush=True)
            message = {**message, "exit": message["exit"] or 1}
        self._tell_leader(message)

    def _deliver_snapshot(self, message: dict[str, Any], then: Any) -> None:
        """Bring a spooled shard to member 0, whose uploader commits it; here it is then no longer needed."""
        shard = Path(message["path"])
        store = shard.parent.parent / "store.json"

        def arrived(is_there: bool) -> None:
            if is_there:
                files.remove(shard, at="outpost.spool.remove")
            then(is_there)

        self._couriers.bring([store, shard], to=self._leader_at, then=arrived)

    def _signal_ranks(self, signum: int) -> None:
        for pid in list(self._ranks.values()):
            processes.signal_group(pid, signum, at="outpost.rank.signal")

    def _kill_strays(self) -> bool:
        spared = {*self._shipping.pids, *([self._member_pid] if self._member_pid is not None else ())}
        found = [row.pid for row in census.strays(spared=spared, uploader=self._couriers.pids)]
        if found:
            processes.signal_all(found, signal.SIGKILL, at="outpost.stray.kill")
        return bool(found)

    def _release(self) -> None:
        """Let the devices go, once nothing here can use them any more."""
        self._is_leaving = True
        if self._member is None or self._member_pid is None:
            self._loop.stop()
        elif self._couriers.pids or self._kill_strays():
            self._loop.after(_SWEEP_SECONDS, self._release)
        else:
            self._member.send({"op": "release"})

    def _child_ended(self, pid: int, status: int) -> None:
        if self._couriers.ended(pid, status):
            return
        if pid != self._member_pid:
            return
        self._is_leaving, self._member_pid = True, None
        if not self._is_alone:
            self._code = status if status >= 0 else 128 - status
        self._kill_strays()
        self._tell_leader({"op": "member_exit", "exit": status})
        self._leave_when_told()

    def _leave_when_told(self) -> None:
        if self._leader is not None and self._leader.has_unsent:
            self._loop.after(_SWEEP_SECONDS, self._leave_when_told)
        else:
            self._loop.stop()

    def _tell_leader(self, message: dict[str, Any]) -> None:
        if self._leader is not None:
            self._leader.send(message)
