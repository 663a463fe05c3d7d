"""The gang channel as the supervisor serves it: who is connected, and what each operation does.

The wire: one JSON object a line; requests carry `op` and `id`, replies the same `id`; pushes carry `push`.
"""

import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

from dsec_blocks.model import gang_protocol
from dsec_blocks.model.errors import ClusterError
from dsec_workers.clusters.local.acquires import Acquires
from dsec_workers.clusters.local.loop import Lines
from dsec_workers.clusters.local.ranks import MASTER_ADDRESS, check_call, ranks_of
from dsec_workers.clusters.local.rendezvous import Rendezvous
from dsec_workers.clusters.local.runs import GangRun, free_port
from dsec_workers.clusters.local.supervisor import Supervisor

_LAST_WORDS_SECONDS = 0.5
"""How long a slow reader may take to hear that the gang is gone; whoever is later reads it from the file."""


class Service:
    """All connections of one gang's channel."""

    def __init__(self, supervisor: Supervisor, listener: socket.socket, *, address: str = MASTER_ADDRESS) -> None:
        self._gang = supervisor
        self._address = address
        self._listener = listener
        self._connections: set[Lines] = set()
        self._introduced: set[Lines] = set()
        self._followers: dict[Lines, Callable[[dict[str, Any]], None]] = {}
        self._callers: dict[Lines, int] = {}
        """connection → number of the run that it waits for"""
        self._acquires = Acquires(supervisor.order.key.attempt)
        self._serial_rendezvous = Rendezvous(world_size=1)
        supervisor.push = self._push
        supervisor.last_word.on_written = self._say_goodbye
        listener.setblocking(False)
        supervisor.loop.watch(listener.fileno(), lambda _: self._accept())

    def _accept(self) -> None:
        try:
            connection, _ = self._listener.accept()
        except (BlockingIOError, ConnectionError):
            return
        self.take(connection)

    def take(self, connection: socket.socket) -> Lines:
        """Serve a connection that came in at this door, or at another one."""
        line = Lines(self._gang.loop, connection, on_message=self._receive, on_close=self._closed)
        self._connections.add(line)
        return line

    def _receive(self, line: Lines, message: dict[str, Any]) -> None:
        request = message.get("id")

        def reply(fields: dict[str, Any]) -> None:
            line.send({"id": request, "ok": True, **fields})

        operation = getattr(self, f"_op_{message.get('op')}", None)
        if operation is None:
            reply({"ok": False, "error": f"the gang channel knows no operation {message.get('op')!r}"})
            return
        try:
            operation(line, message, reply)
        except ClusterError as error:
            reply({"ok": False, "error": str(error)})
        except OSError as error:
            reply({"ok": False, "error": f"{message['op']} could not be made durable: {error}"})
        except (KeyError, TypeError, ValueError) as error:
            reply({"ok": False, "error": f"{message['op']}: a field is missing or wrong ({error!r})"})

    def _closed(self, line: Lines) -> None:
        self._connections.discard(line)
        self._introduced.discard(line)
        follower = self._followers.pop(line, None)
        if follower is not None:
            self._gang.happenings.unfollow(follower)
        number = self._callers.pop(line, None)
        if number is not None and self._gang.runs.run is not None and self._gang.runs.run.number == number:
            self._gang.runs.abandon()

    def _push(self, message: dict[str, Any]) -> None:
        for line in list(self._introduced):
            line.send(message)

    def _say_goodbye(self) -> None:
        self._gang.loop.after(_LAST_WORDS_SECONDS, self._gang.loop.stop)
        self._leave_when_heard()

    def _leave_when_heard(self) -> None:
        if any(line.has_unsent for line in self._connections):
            self._gang.loop.after(0.01, self._leave_when_heard)
        else:
            self._gang.loop.stop()

    # --- what flow and ranks ask ----------------------------------------------------------------------------------

    def _op_hello(self, line: Lines, message: dict[str, Any], reply: Any) -> None:
        self._introduced.add(line)
        order, run, notice = self._gang.order, self._gang.runs.run, self._gang.notice
        reply(
            {
                **gang_protocol.told(message),
                "run_id": order.key.run_id,
                "attempt": order.key.attempt,
                "request": order.request.to_json(),
                "placement": order.placement.to_json(),
                "world_size": len(run.ranks) if run is not None and message.get("role") == "rank" else 1,
                "members": len(order.placement.members),
                "notice": notice.current,
                "stop_before": notice.stop_before,
            }
        )

    def _op_report(self, _line: Lines, message: dict[str, Any], reply: Any) -> None:
        before = self._gang.happenings.last("progressed") or {}
        has_on_evict = message.get("has_on_evict")
        self._gang.happenings.progress(
            step=message.get("step"),
            metrics=message.get("metrics"),
            has_on_evict=None if has_on_evict == before.get("has_on_evict") else has_on_evict,
        )
        reply({})

    def _op_acquired(self, _line: Lines, message: dict[str, Any], reply: Any) -> None:
        self._gang.happenings.progress(metrics=self._acquires.add(message))
        reply({})

    def _op_step(self, _line: Lines, message: dict[str, Any], reply: Any) -> None:
        reply({"stop_before": self._gang.notice.stop_before, "notice": self._gang.notice.current})

    def _op_stop_before(self, _line: Lines, message: dict[str, Any], reply: Any) -> None:
        step = self._gang.notice.publish_stop(int(message["step"]))
        reply({"stop_before": step, "notice": self._gang.notice.current})

    def _op_agree(self, _line: Lines, message: dict[str, Any], reply: Any) -> None:
        self._rendezvous.arrive(message["name"], int(message["rank"]), message.get("value"), reply)

    def _op_barrier(self, _line: Lines, message: dict[str, Any], reply: Any) -> None:
        self._rendezvous.arrive(f"barrier:{message['name']}", int(message["rank"]), None, reply)

    def _op_snapshotting(self, _line: Lines, message: dict[str, Any], reply: Any) -> None:
        if self._gang.notice.current is not None and not self._gang.happenings.has("snapshotting"):
            self._gang.happenings.tell("snapshotting")
        reply({})

    def _op_spooled(self, _line: Lines, message: dict[str, Any], reply: Any) -> None:
        self._gang.uploader.begin()
        reply({})

    def _op_committed(self, _line: Lines, message: dict[str, Any], reply: Any) -> None:
        self._gang.happenings.tell("committed", step=int(message["step"]), seconds=float(message["seconds"]))
        reply({})

    def _op_run(self, line: Lines, message: dict[str, Any], reply: Any) -> None:
        gang = self._gang
        if gang.notice.current is not None:
            reply({"done": True, "evicted": True})
            return
        if gang.is_ending or not gang.is_open:
            raise ClusterError("gang.run: the gang is not running (any more); nothing was started")
        if gang.runs.run is not None:
            raise ClusterError("gang.run: another gang.run of this gang is in progress; wait for it first")
        per, launcher = message.get("per", "device"), message.get("launcher", "plain")
        check_call(message["call"], launcher=launcher, per=per)
        ranks = ranks_of(
            gang.order.placement,
            per=per,
            master_port=free_port(self._address),
            master_address=self._address,
            env={str(k): str(v) for k, v in (message.get("env") or {}).items()},
            launcher=launcher,
        )
        number = gang.runs.next_number()

        def tell(fields: dict[str, Any]) -> None:
            if fields.get("done"):
                self._callers.pop(line, None)
            reply(fields)

        run = GangRun(
            number=number,
            ranks=ranks,
            results=Path(gang.directory.runs / str(number)),
            tell=tell,
            rendezvous=Rendezvous(world_size=len(ranks)),
        )
        self._callers[line] = number
        gang.start_run(run, run.orders(message["call"], launcher=launcher, nodes=len(gang.order.placement.members)))

    @property
    def _rendezvous(self) -> Rendezvous:
        return self._gang.runs.run.rendezvous if self._gang.runs.run is not None else self._serial_rendezvous

    # --- what the worker asks -------------------------------------------------------------------------------------

    def _op_events(self, line: Lines, message: dict[str, Any], reply: Any) -> None:
        def follower(record: dict[str, Any]) -> None:
            reply({**record, **({"done": True} if record["type"] == "gone" else {})})

        self._followers[line] = follower
        self._gang.happenings.follow(int(message.get("after", 0)), follower)

    def _op_notify(self, _line: Lines, message: dict[str, Any], reply: Any) -> None:
        notice = dict(message["notice"])
        if notice["attempt"] != self._gang.order.key.attempt:
            raise ClusterError(
                f"a notice for attempt {notice['attempt']} of {self._gang.order.key.run_id} reached attempt "
                f"{self._gang.order.key.attempt}; it was ignored"
            )
        self._gang.give_notice(notice)
        reply({})

    def _op_withdraw(self, _line: Lines, message: dict[str, Any], reply: Any) -> None:
        reply({"withdrawn": self._gang.withdraw_notice()})

    def _op_stop(self, _line: Lines, message: dict[str, Any], reply: Any) -> None:
        grace = float(message.get("grace", 0.0))
        self._gang.uploader.stop(grace)
        self._gang.end(grace_seconds=grace)
        reply({})

    def _op_status(self, _line: Lines, message: dict[str, Any], reply: Any) -> None:
        records = self._gang.happenings.records
        reply(
            {
                "events": records,
                "last": max((r["seq"] for r in records), default=0),
                "notice": self._gang.notice.current,
            }
        )
