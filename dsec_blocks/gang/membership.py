"""Who this process is in its gang, and its line to the supervisor.

Read from the environment, once per process: a forked child is somebody else. Outside a gang it is rank 0 of 1 with
nobody to talk to, so that the same code runs on a laptop.
"""

import os
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING, Any

from dsec_blocks.gateways.home import home_of
from dsec_blocks.model import gang_protocol, names
from dsec_blocks.model.errors import Evicted

if TYPE_CHECKING:
    from dsec_blocks.gang.channel import Channel

_lock = Lock()
_known: "tuple[int, Membership] | None" = None


@dataclass(kw_only=True)
class Membership:
    """One process's place: the flow process itself, or a rank of a `gang.run`."""

    env: Mapping[str, str]
    _meetings: dict[str, int] = field(default_factory=dict)

    @property
    def channel_path(self) -> str | None:
        """The supervisor's socket; None outside a gang."""
        return self.env.get(names.ENV_CHANNEL) or None

    @property
    def is_rank(self) -> bool:
        """Whether this is a rank of a `gang.run` (and not the flow's own process)."""
        return "RANK" in self.env and (self.channel_path is not None or names.ENV_LOCAL_RANK_OF in self.env)

    @property
    def rank(self) -> int:
        """0 … world_size−1; the flow's own process is 0."""
        return int(self.env["RANK"]) if self.is_rank else 0

    @property
    def world_size(self) -> int:
        """Ranks of this `gang.run`; 1 in the flow's own process."""
        return int(self.env.get("WORLD_SIZE", 1)) if self.is_rank else 1

    @property
    def local_rank(self) -> int:
        """Which of its node's ranks this is."""
        return int(self.env.get("LOCAL_RANK", 0)) if self.is_rank else 0

    @property
    def member(self) -> int:
        """Index of the node in the gang."""
        return int(self.env.get(names.ENV_MEMBER) or 0)

    @property
    def attempt(self) -> int | None:
        """Which attempt of the run; None outside a gang."""
        given = self.env.get(names.ENV_ATTEMPT)
        return int(given) if given and self.channel_path else None

    @property
    def run_id(self) -> str:
        """The flow run's id, also in a local call; "local" without any flow."""
        return self.env.get(names.ENV_RUN_ID) or prefect_run_id() or "local"

    @property
    def spool(self) -> Path:
        """Where this node's snapshots wait for their upload."""
        given = self.env.get(names.ENV_SPOOL)
        if given and self.channel_path:
            return Path(given)
        return home_of(self.env) / "spool" / self.run_id

    @cached_property
    def channel(self) -> "Channel | None":
        """The line to the supervisor, opened on first use; None outside a gang."""
        if self.channel_path is None:
            return None
        from dsec_blocks.gang.channel import Channel

        channel = Channel.connect(self.channel_path)
        role = "rank" if self.is_rank else "flow"
        answer = channel.call("hello", role=role, member=self.member, rank=self.rank, **gang_protocol.told())
        gang_protocol.refuse_newer(answer, "the supervisor of this gang", upgrade="the DSec of this process")
        return channel

    @property
    def notice(self) -> Mapping[str, Any] | None:
        """Why and by when the gang must leave, once it was told."""
        return self.channel.notice if self.channel is not None else None

    def tell(self, op: str, **fields: Any) -> dict[str, Any]:
        """Say something to the supervisor; nothing outside a gang.

        Raises `Evicted` when the supervisor has died: that is no failure of the user's code.
        """
        with leaving_with_the_supervisor():
            return self.channel.call(op, **fields) if self.channel is not None else {}

    def agree(self, name: str, value: Any) -> Any:
        """Meet all ranks: any of booleans, the largest of numbers. All must come in the same order."""
        if self.world_size == 1:
            return value
        count = self._meetings[name] = self._meetings.get(name, 0) + 1
        return self.tell("agree", name=f"{name}/{count}", rank=self.rank, value=value)["value"]


@contextmanager
def leaving_with_the_supervisor() -> Iterator[None]:
    """Inside, the supervisor's death ends this process as an eviction does: the run is put back in the queue."""
    from dsec_blocks.gang.channel import SupervisorGone

    try:
        yield
    except SupervisorGone as gone:
        raise Evicted(str(gone)) from gone


def membership() -> Membership:
    """The place of this process."""
    global _known
    with _lock:
        if _known is None or _known[0] != os.getpid():
            _known = (os.getpid(), Membership(env=dict(os.environ)))
        return _known[1]


def prefect_run_id() -> str | None:
    """The id of the flow run this code is in, without importing Prefect for it."""
    context = flow_context()
    run = getattr(context, "flow_run", None)
    return str(run.id) if run is not None else None


def flow_context() -> Any:
    """Prefect's context of the flow run this code is in, or None."""
    module = sys.modules.get("prefect.context")
    if module is None:
        return None
    return module.FlowRunContext.get()
