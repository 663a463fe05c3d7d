"""Member 0's outpost: the gang's supervisor, with members that are in other pods.

It waits to be told where they are (`introduce`, said by whoever follows the pods), calls on each, and from then on
treats it as it treats a member of its own. The pod ends when the gang is gone, and its last word is its pod's.
"""

import signal
import socket
from dataclasses import replace
from pathlib import Path
from typing import Any

from dsec_blocks.gateways import processes
from dsec_blocks.gateways.clock import SystemClock
from dsec_blocks.model import gang_protocol
from dsec_blocks.model.errors import ClusterError
from dsec_blocks.model.gangs import Placement
from dsec_blocks.model.notices import NoticeKind
from dsec_workers.clusters.kubernetes.outpost import parcels, termination
from dsec_workers.clusters.kubernetes.outpost.door import Door, say
from dsec_workers.clusters.kubernetes.outpost.identity import Identity
from dsec_workers.clusters.kubernetes.outpost.logs import LogTail
from dsec_workers.clusters.kubernetes.outpost.observed import are_named, observed_devices
from dsec_workers.clusters.kubernetes.outpost.others import LARGEST_CALL_BYTES, Others
from dsec_workers.clusters.kubernetes.outpost.refusing import EXIT_NOT_STARTED, could_not_start
from dsec_workers.clusters.kubernetes.outpost.shipping import Shipping
from dsec_workers.clusters.local import warmth
from dsec_workers.clusters.local.forkserver import listen
from dsec_workers.clusters.local.layout import GangDirectory, socket_path
from dsec_workers.clusters.local.service import Service
from dsec_workers.clusters.local.supervisor import Supervisor
from dsec_workers.clusters.protocol import LaunchOrder

_WORST_EXIT = 255


def lead(identity: Identity) -> int:
    """Supervise the gang until it is gone; the container's exit code."""
    door = Door(address=identity.address, port=identity.port, token=identity.token)
    try:
        order = _with_observed_devices(identity)
    except ClusterError as error:
        return could_not_start(0, str(error), log=identity.termination_log)
    warmth.import_modules()
    warmth.share_tls_contexts()
    processes.adopt_orphans()
    directory = GangDirectory.of(identity.home, identity.key)
    directory.path.mkdir(mode=0o700, parents=True, exist_ok=True)
    channel = socket_path(identity.home, directory.path.name)
    listener = listen(channel)
    count = len(order.placement.members)
    supervisor = Supervisor(
        home=identity.home, directory=directory, order=order, channel=channel, elsewhere=range(1, count)
    )
    service = LeaderService(supervisor, listener, identity=identity)
    loop = supervisor.loop

    def serve(connection: socket.socket, greeting: dict[str, Any]) -> None:
        say(connection, {"ok": True, **gang_protocol.told(greeting)})
        service.take(connection)

    def receive(connection: socket.socket, greeting: dict[str, Any]) -> None:
        try:
            parcels.receive(loop, directory.path, connection, greeting)
        except OSError as error:  # no more processes, say: whoever brought it is told, and the gang goes on
            raise ClusterError(f"a parcel cannot be taken now: {error}") from error

    door.open(loop, {"channel": serve, "parcel": receive})
    _leave_politely_on_sigterm(supervisor)
    tail = LogTail(loop, directory.path)
    shipping = Shipping(loop, directory.path, run_id=order.key.run_id, env=order.env)
    supervisor.companions = shipping.pids
    tail.start()
    shipping.start()
    supervisor.start()
    loop.run()
    tail.flush()
    records = supervisor.happenings.records
    termination.leave(identity.termination_log, termination.encode(records))
    shipping.finish()
    gone = supervisor.happenings.last("gone") or {}
    code = gone.get("flow_exit")
    return EXIT_NOT_STARTED if code is None else min(abs(code), _WORST_EXIT)


class LeaderService(Service):
    """The gang channel, with one operation more: where the other members are."""

    def __init__(self, supervisor: Supervisor, listener: socket.socket, *, identity: Identity) -> None:
        super().__init__(supervisor, listener, address=identity.address)
        self._others = Others(supervisor, token=identity.token, port=identity.port, address=identity.address)
        self._cards_are_named = are_named(identity.order.env)

    def _op_run(self, line: Any, message: dict[str, Any], reply: Any) -> None:
        call = message["call"]
        if call.get("kind") == "function" and len(self._gang.order.placement.members) > 1:
            size = Path(call["path"]).stat().st_size
            if size > LARGEST_CALL_BYTES:
                raise ClusterError(
                    f"gang.run: the function and its arguments are {size / 2**20:.1f} MiB; at most "
                    f"{LARGEST_CALL_BYTES / 2**20:.0f} MiB travel to other pods. Put the data into a store or a volume"
                )
        super()._op_run(line, message, reply)

    def _op_status(self, line: Any, message: dict[str, Any], reply: Any) -> None:
        members = self._gang.order.placement.members if self._cards_are_named else ()
        cards = {str(index): list(member.devices) for index, member in enumerate(members)}
        super()._op_status(line, message, lambda told: reply({**told, "cards": cards}))

    def _op_introduce(self, _line: Any, message: dict[str, Any], reply: Any) -> None:
        self._others.introduce({int(index): str(address) for index, address in message["members"].items()})
        reply({"waiting_for": self._others.waiting_for})


def _with_observed_devices(identity: Identity) -> LaunchOrder:
    order = identity.order
    first, *rest = order.placement.members
    first = replace(first, devices=observed_devices(first.devices, order.env))
    return replace(order, placement=Placement(members=(first, *rest)))


def _leave_politely_on_sigterm(supervisor: Supervisor) -> None:
    """Who deletes the pod asks the gang to leave: it has its own grace, and the pod's ends after that."""

    def ask() -> None:
        if supervisor.notice.current is not None or supervisor.is_ending:
            return
        order = supervisor.order
        supervisor.give_notice(
            {
                "kind": NoticeKind.DRAIN.value,
                "reason": "its pod was told to stop",
                "deadline": SystemClock().now() + order.request.grace_seconds,
                "attempt": order.key.attempt,
            }
        )

    signal.signal(signal.SIGTERM, lambda *_: supervisor.loop.soon(ask))
    signal.signal(signal.SIGINT, signal.SIG_IGN)
