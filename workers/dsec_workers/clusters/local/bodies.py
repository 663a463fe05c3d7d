"""What the processes that a supervisor forks become: the flow's, a member's, and the uploader's."""

import json
import socket
from functools import cached_property
from pathlib import Path
from typing import Any

from dsec_blocks.model import names
from dsec_workers.clusters.local import children, engine, warmth
from dsec_workers.clusters.local.layout import GangDirectory
from dsec_workers.clusters.local.member import Member
from dsec_workers.clusters.local.ranks import device_env
from dsec_workers.clusters.protocol import LaunchOrder


class Bodies:
    """Each method runs in a child that was just forked, and returns its exit code. `locks`: the devices' directory."""

    def __init__(self, *, order: LaunchOrder, directory: GangDirectory, locks: Path, channel: Path) -> None:
        self._order = order
        self._directory = directory
        self._locks = locks
        self._channel = channel

    @cached_property
    def environment(self) -> dict[str, str]:
        """The whole environment of the gang's processes; member 0's, which is where the flow runs."""
        order = self._order
        return {
            **order.env,
            **device_env(order.placement.members[0].devices),
            names.ENV_RUN_ID: order.key.run_id,
            names.ENV_ATTEMPT: str(order.key.attempt),
            names.ENV_CHANNEL: str(self._channel),
            names.ENV_REQUEST: _compact(order.request.to_json()),
            names.ENV_PLACEMENT: _compact(order.placement.to_json()),
            names.ENV_MEMBER: "0",
            names.ENV_SPOOL: str(self._directory.spool),
        }

    def flow(self, line: socket.socket) -> int:
        """Run the flow, by the Prefect engine or by the order's command."""
        order = self._order
        children.stand_apart(log=self._directory.log("flow"), keep=[line.fileno()])
        defaults = {"PREFECT__FLOW_RUN_ID": order.key.run_id}
        if order.command is not None:
            # Only the `flow-run execute` command reads this: an evicted run leaves its state to the worker.
            defaults["PREFECT_FLOW_RUN_EXECUTE_SIGTERM_BEHAVIOR"] = "relinquish"
        children.take_environment({**defaults, **self.environment})
        self._enter()
        control = engine.Control(line)
        return engine.run_engine(order, control) if order.command is None else engine.run_command(order, control)

    def member(self, line: socket.socket, *, index: int) -> int:
        """Hold the devices of member `index`, and start its ranks."""
        children.stand_apart(log=self._directory.log(f"member-{index}"), keep=[line.fileno()])
        children.take_environment({**self.environment, names.ENV_MEMBER: str(index)})
        self._enter()
        return Member(
            index=index,
            devices=self._order.placement.members[index].devices,
            locks_directory=self._locks,
            gang=self._directory.path,
            blocking=self._order.hold_start,
        ).serve(line)

    def uploader(self) -> int:
        """Commit what is in the gang's spool."""
        children.stand_apart(log=self._directory.log("uploader"), keep=[], new_session=True)
        children.take_environment(self.environment)
        warmth.rebuild_prefect_context()
        from dsec_blocks.checkpoints import uploader

        return uploader.main(self._directory.spool, self.environment[names.ENV_CHANNEL]) or 0

    def _enter(self) -> None:
        engine.enter(Path(self._order.working_dir) if self._order.working_dir else self._directory.work)


def _compact(value: Any) -> str:
    return json.dumps(value, separators=(",", ":"))
