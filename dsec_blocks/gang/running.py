"""`run`: what code inside a gang says and hears while it works.

The one hard thing here is that all ranks must stop before the *same* step. Ranks that each look at a flag see it at
different steps, and those that go on wait for ever in a collective with those that left. So rank 0 alone decides: when
a notice is there before it enters step k, it publishes "stop before k+1", durably, and only then enters step k. Every
other rank asks at each step's start. A rank cannot finish step k (with a collective in it) before rank 0 has entered
step k, so whoever gets to step k+1 finds the decision there.
"""

import inspect
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar

from dsec_blocks.gang.membership import Membership, membership
from dsec_blocks.gateways.clock import SystemClock
from dsec_blocks.model.errors import Evicted, InvalidRequest
from dsec_blocks.model.units import parse_duration

if TYPE_CHECKING:
    from dsec_blocks.checkpoints import Checkpoints

REPORT_SECONDS = 0.5
"""Step numbers are told to the supervisor at most this often; metrics that were reported are never dropped."""
DEFAULT_EVERY = "10min"
Hook = TypeVar("Hook", bound=Callable[..., Any])


class Run:
    """What this process runs. There is one, `dsec_blocks.gang.run`; it finds out where it is when it is used."""

    def __init__(self) -> None:
        self._clock = SystemClock()
        self._hooks: dict[str, Callable[..., Any]] = {}
        self._checkpoints: Checkpoints | None = None
        self._every_steps: int | None = None
        self._every_seconds: float | None = None
        self._saved_at = 0.0
        self._reported_at = float("-inf")
        self._unsent: dict[str, Any] = {}
        self._step: int | None = None

    def __reduce__(self) -> str:
        return "run"  # pickled by name: in another process it is that process's run

    @property
    def rank(self) -> int:
        """The rank's number; 0 in the flow's own process."""
        return membership().rank

    @property
    def world_size(self) -> int:
        """How many ranks there are; 1 in the flow's own process."""
        return membership().world_size

    @property
    def local_rank(self) -> int:
        """Which of its node's ranks this is."""
        return membership().local_rank

    @property
    def id(self) -> str:
        """The flow run's id."""
        return membership().run_id

    @property
    def notice(self) -> Mapping[str, Any] | None:
        """Why (`reason`) and by when (`deadline`, seconds since the epoch) the gang must leave; None if it need not.

        Ranks may hear of it at different moments: `gang.agree(run.notice is not None)` is the same on all.
        """
        return membership().notice

    def steps(self, total: int, start: int | None = None) -> Iterator[int]:
        """The step indices from `start` (default: where the restored checkpoint ends) to `total`.

        Before each step the gang may be told to leave; then all ranks stop before the same step, the `on_evict`
        hooks run and `Evicted` is raised. That needs a collective in each step, as data-parallel training has; a loop
        without one must use `gang.agree`.
        """
        me = membership()
        first = start if start is not None else (self._checkpoints.step if self._checkpoints else 0)
        stop_before: int | None = None
        self._saved_at = self._clock.monotonic()
        for step in range(first, total):
            stop_before = self._stop_step(me, step, stop_before)
            if stop_before is not None and step >= stop_before:
                if step > stop_before:
                    _say(
                        f"rank {me.rank} was already past the step to stop before ({stop_before}, it is at {step}); "
                        "a loop without a collective in each step needs gang.agree()"
                    )
                self._leave_at(me, step)
            self._step = step
            self._tell_step(me, step)
            yield step
        self._flush(me)

    def report(self, *, step: int | None = None, **metrics: float) -> None:
        """Tell how it goes, for example `run.report(step=step, loss=loss)`; only rank 0's report counts."""
        me = membership()
        if me.rank != 0:
            return
        if step is not None:
            self._unsent["step"] = int(step)
        self._unsent.setdefault("metrics", {}).update({name: float(value) for name, value in metrics.items()})
        if self._clock.monotonic() - self._reported_at >= REPORT_SECONDS:
            self._flush(me)

    def on_evict(self, hook: Hook) -> Hook:
        """Register what to do when the gang must leave: snapshot. `hook(step)` or `hook()`; usable as a decorator.

        A hook of the same name replaces the one before, so that a retried flow does not snapshot stale state.
        """
        me = membership()
        self._hooks[f"{hook.__module__}.{hook.__qualname__}"] = hook
        if me.rank == 0:
            me.tell("report", has_on_evict=True)
        return hook

    def checkpoints(
        self,
        store: "str | Path | Any | None" = None,
        *,
        every: int | str = DEFAULT_EVERY,
        name: str = "",
        replicated: bool = False,
    ) -> "Checkpoints":
        """The run's checkpoints in `store` (a path, a URL or the name of a CheckpointStore block).

        `every` is what `should_checkpoint` goes by: a number of steps, or a duration such as "10min". `name` tells
        apart several sets of checkpoints in one run. `replicated` says that every rank saves the same state (data
        parallel training): an elastic gang then resumes from it at another size too.
        """
        from dsec_blocks.checkpoints import Checkpoints, open_store
        from dsec_blocks.checkpoints.session import Seat

        me = membership()
        if isinstance(every, bool) or (isinstance(every, int) and every < 1):
            raise InvalidRequest(f"every: {every!r} is neither a number of steps (at least 1) nor a duration")
        self._every_steps = every if isinstance(every, int) else None
        self._every_seconds = parse_duration(every, field="every") if isinstance(every, str) else None
        self._saved_at = self._clock.monotonic()
        seat = Seat(
            run=me.run_id,
            attempt=me.attempt,
            rank=me.rank,
            world_size=me.world_size,
            spool=me.spool,
            clock=self._clock,
            agree=lambda meeting, value: me.agree(f"checkpoint.{meeting}", value),
            tell=me.tell if me.channel_path else None,
        )
        self._checkpoints = Checkpoints(open_store(store), seat, name=name, replicated=replicated)
        return self._checkpoints

    def should_checkpoint(self) -> bool:
        """Whether this is the moment to save, the same answer on every rank; call it once in each step.

        True when the interval of `checkpoints(every=…)` has passed, and, where no `on_evict` hook would do it, when
        the gang was told to leave.
        """
        me = membership()
        due = False
        if self._checkpoints is not None and self._every_steps is not None and self._step is not None:
            due = (self._step + 1) % self._every_steps == 0
        elif self._checkpoints is not None and self._every_seconds is not None:
            due = self._clock.monotonic() - self._saved_at >= self._every_seconds
        must_leave = not self._hooks and me.notice is not None
        if self._every_seconds is not None or not self._hooks:
            due = bool(me.agree("should_checkpoint", due or must_leave))
        if due:
            self._saved_at = self._clock.monotonic()
        return due

    def leave(self) -> NoReturn:
        """Leave now, checkpointed: for loops that do not use `steps`. Every rank must call it."""
        me = membership()
        self._leave_at(me, self._step + 1 if self._step is not None else 0)

    def _stop_step(self, me: Membership, step: int, known: int | None) -> int | None:
        if me.channel is None:
            return None
        if me.rank != 0:
            found = me.tell("step", rank=me.rank, step=step).get("stop_before")
            return None if found is None else int(found)
        if known is not None or me.notice is None:
            return known
        if me.world_size == 1:
            # Without a hook the snapshot is `should_checkpoint`'s, which may have been asked for this step already.
            return step if self._hooks else step + 1
        me.tell("stop_before", step=step + 1)
        return step + 1

    def _leave_at(self, me: Membership, step: int) -> NoReturn:
        me.tell("snapshotting", rank=me.rank)
        for hook in self._hooks.values():
            if _takes_an_argument(hook):
                hook(step)
            else:
                hook()
        self._flush(me)
        reason = (me.notice or {}).get("reason") or "the gang was told to leave"
        raise Evicted(f"stopped before step {step}: {reason}")

    def _tell_step(self, me: Membership, step: int) -> None:
        if me.rank == 0 and me.channel is not None:
            self._unsent["step"] = step
            if self._clock.monotonic() - self._reported_at >= REPORT_SECONDS:
                self._flush(me)

    def _flush(self, me: Membership) -> None:
        if self._unsent:
            unsent, self._unsent = self._unsent, {}
            me.tell("report", **unsent)
            self._reported_at = self._clock.monotonic()


run = Run()
"""This process's run."""


def agree(value: Any) -> Any:
    """The same value on every rank: any of booleans, the largest of numbers. Every rank must call it."""
    return membership().agree("agree", value)


def _takes_an_argument(hook: Callable[..., Any]) -> bool:
    kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    try:
        parameters = inspect.signature(hook).parameters.values()
    except (TypeError, ValueError):
        return True
    return any(p.kind in kinds and p.default is p.empty for p in parameters) or any(
        p.kind is p.VAR_POSITIONAL for p in parameters
    )


def _say(text: str) -> None:
    print(f"dsec: {text}", file=sys.stderr, flush=True)
