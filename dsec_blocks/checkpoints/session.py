"""What a rank holds in its hands: restore once, save as often as it likes.

    checkpoint = run.checkpoints(store)
    state = checkpoint.restore({"weights": initial})
    for step in run.steps(total):
        ...
        if run.should_checkpoint():
            checkpoint.save(step + 1, state)

Restoring is collective: all ranks resume from the same commit, the newest that every rank can read its own shard of.
Saving is local and short: the shard is in the node's spool, fsynced, when `save` returns, so whatever happens to the
arrays afterwards does not matter, and the upload happens elsewhere.
"""

import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar, overload

from dsec_blocks.checkpoints.choosing import choose
from dsec_blocks.checkpoints.commit_log import CommitLog, describe
from dsec_blocks.checkpoints.heads import Commit, Head
from dsec_blocks.checkpoints.shards import (
    Shard,
    ShardLabel,
    Torn,
    encode,
    global_randomness,
    set_global_randomness,
)
from dsec_blocks.checkpoints.spool import DRAIN_SECONDS, SpoolSet, wait_until_uploaded
from dsec_blocks.checkpoints.stores import StoreAddress
from dsec_blocks.checkpoints.uploads import Uploader
from dsec_blocks.model.clock import Clock
from dsec_blocks.model.errors import CheckpointError, CheckpointMissing
from dsec_blocks.model.names import ENV_FRESH_START, ENV_LAST_COMMIT, ENV_START_FROM

State = TypeVar("State")


@dataclass(frozen=True, kw_only=True)
class Seat:
    """Where a rank sits: which run and attempt (None: a local call, the next one), and how it reaches the others.

    `agree(name, value)` is the any/max over all ranks. `tell` is None when no supervisor runs an uploader; then a save
    uploads by itself.
    """

    run: str
    attempt: int | None
    rank: int
    world_size: int
    spool: Path
    clock: Clock
    agree: Callable[[str, Any], Any]
    tell: Callable[..., Any] | None = None


class Checkpoints:
    """The checkpoints of this run, as one rank sees them."""

    def __init__(self, address: StoreAddress, seat: Seat, *, name: str = "", replicated: bool = False) -> None:
        self.address = address
        self.step = 0
        """Finished steps of what was restored: the index to resume at."""
        self.position: Any = None
        """Where in its data the rank was, as it was given to `save`."""
        self._seat = seat
        self._replicated = replicated
        if not all(letter.isalnum() or letter in "-_" for letter in name):
            raise CheckpointError(f"checkpoints(name={name!r}): use letters, digits, '-' and '_' only")
        self._run = f"{seat.run}.{name}" if name else seat.run
        self._is_named = bool(name)
        self._log = CommitLog(address.open(), self._run)
        self._attempt: int | None = None
        self._saved: int | None = None
        self._spool_set: SpoolSet | None = None

    @overload
    def restore(self, default: State) -> State: ...

    @overload
    def restore(self) -> Any: ...

    def restore(self, default: Any = None) -> Any:
        """The state that this rank saved in the newest commit, or `default` when the run starts for the first time.

        The global random states of `random`, numpy and torch continue where they were; `step` and `position` tell
        where. Every rank must call it. Where the state is `replicated` and the gang was shrunk or has grown since, all
        ranks get rank 0's, and the random states of the others stay as they are.

        Raises `CheckpointMissing` when a commit must be there and none can be read, `CheckpointFenced` when a newer
        attempt runs, `CheckpointError` when another number of ranks has written the checkpoint, not replicated.
        """
        head = self._begin()
        commit, shard, torn = choose(
            self._log, rank=self._seat.rank, agree=self._seat.agree, load=self._load, order=lambda head: head.to_try
        )
        self._settle(commit, torn)
        if commit is None or shard is None:
            self._refuse_a_silent_restart(torn=torn, head=head)
            return self._start(default)
        self.step, self.position, self._saved = shard.label.step, shard.position, None
        if shard.label.rank == self._seat.rank:
            set_global_randomness(shard.randomness)
        if self._seat.rank == 0:
            say(f"run {self._run}: resumes at step {self.step}, from the commit of attempt {commit.attempt}")
        return shard.state

    def save(self, step: int, state: Any, *, position: Any = None) -> None:
        """Snapshot `state` after `step` finished steps. Every rank must save the same steps.

        Returns once the shard is durable on the node. Saving the same step again does nothing.
        """
        if step == self._saved:
            return
        if self._attempt is None:
            self._begin()
        assert self._attempt is not None
        seat = self._seat
        label = ShardLabel(
            run=self._run,
            step=step,
            attempt=self._attempt,
            rank=seat.rank,
            world_size=seat.world_size,
            started_at=seat.clock.now(),
        )
        content = encode(label, state, position=position, randomness=global_randomness())
        path = self._spool().write(step=step, attempt=self._attempt, rank=seat.rank, content=content)
        self._saved = step
        if seat.tell is None:
            Uploader(spool=seat.spool, tell=lambda *_, **__: None, clock=seat.clock).step()
        else:
            seat.tell("spooled", rank=seat.rank, step=step, path=str(path), started_at=label.started_at)

    def wait(self, timeout: float = DRAIN_SECONDS) -> bool:
        """Wait until everything this node has spooled is committed; False when time is up."""
        return wait_until_uploaded(self._seat.spool, clock=self._seat.clock, timeout=timeout)

    def _start(self, default: Any) -> Any:
        """The first state: another run's last one (fine-tuning goes on from it), or the default."""
        source = os.environ.get(ENV_START_FROM)
        if not source:
            return default
        log = CommitLog(self._log.place, source)
        commit, shard, _ = choose(
            log,
            rank=self._seat.rank,
            agree=lambda meeting, value: self._seat.agree(f"source {meeting}", value),
            load=lambda commit: self._load(commit, log),
            order=lambda head: head.newest_first,
        )
        if commit is not None and shard is not None:
            if self._seat.rank == 0:
                say(f"run {self._run}: starts from step {commit.step} of run {source}")
            return shard.state
        raise CheckpointMissing(
            f"run {self._run}: should start from run {source}, but no commit of it can be read at {self.address.url}"
        )

    def _begin(self) -> Head:
        """Rank 0 owns HEAD, then all read it; returns HEAD."""
        seat = self._seat
        failure: BaseException | None = None
        if seat.rank == 0:
            try:
                self._drain_earlier_snapshots()
                if not self._log.exists():
                    self._refuse_a_silent_restart()
                self._log.begin(seat.attempt, fresh=os.environ.get(ENV_FRESH_START, ""))
            except Exception as error:  # noqa: BLE001 - the other ranks must hear of it before it is raised
                failure = error
        if seat.agree("begun", failure is not None):
            if failure is not None:
                raise failure
            raise CheckpointError(f"run {self._run}: rank 0 could not open the checkpoints; its own error says why")
        head = self._log.head()
        self._attempt = head.generation if seat.attempt is None else seat.attempt
        return head

    def _load(self, commit: Commit, log: CommitLog | None = None) -> Shard | None:
        log = log or self._log
        try:
            manifest = log.manifest(commit)
            resized = manifest.world_size != self._seat.world_size
            if resized and not self._replicated:
                raise CheckpointError(
                    f"run {log.run}: the checkpoint of step {commit.step} was written by {manifest.world_size} ranks "
                    f"and this gang has {self._seat.world_size}; run it in the same shape, say "
                    "run.checkpoints(replicated=True) if every rank saves the same state, or start over: "
                    f"{self._how_to_start_over()}"
                )
            if self._seat.rank == 0:
                log.verify(manifest)
            return log.shard(manifest, 0 if resized else self._seat.rank)
        except Torn as error:
            say(f"run {log.run}: the commit of step {commit.step} (attempt {commit.attempt}) is skipped: {error}")
            return None

    def _settle(self, base: Commit | None, torn: list[Commit]) -> None:
        failure: BaseException | None = None
        if self._seat.rank == 0 and (base is not None or torn):
            assert self._attempt is not None
            try:
                # With nothing left to resume from, the torn commits stay named: somebody may yet repair them.
                self._log.choose(self._attempt, base=base, torn=torn if base is not None else [])
            except Exception as error:  # noqa: BLE001 - as above
                failure = error
        if self._seat.agree("settled", failure is not None):
            raise failure or CheckpointError(f"run {self._run}: rank 0 could not settle on a checkpoint to resume from")

    def _refuse_a_silent_restart(self, *, torn: Sequence[Commit] = (), head: Head | None = None) -> None:
        """Starting at step 0 is right only if there is nothing to lose.

        HEAD knows whether anything was ever committed. Without a HEAD the ledger knows (DSEC_LAST_COMMIT); without
        that a second attempt must believe that the first one had a HEAD.
        """
        if os.environ.get(ENV_FRESH_START) or (head is not None and head.start_over):
            return
        expected = "" if self._is_named else os.environ.get(ENV_LAST_COMMIT)  # the ledger does not know sets apart
        attempt = self._seat.attempt or 1
        if head is not None:
            is_lost = head.committed_ever or bool(expected)
        else:
            is_lost = bool(expected) or (expected is None and attempt > 1)
        if is_lost:
            what = f"none of its commits can be read ({describe(torn)})" if torn else "no commit is there"
            where = f" although step {expected} was committed" if expected else ""
            raise CheckpointMissing(
                f"run {self._run}: attempt {attempt} should resume from {self.address.url}, but {what}{where}. Restore "
                f"the store, or start over on purpose: {self._how_to_start_over()}"
            )
        if attempt > 1 and self._seat.rank == 0:
            say(f"run {self._run}: attempt {attempt} starts at step 0: there is no commit yet")

    def _how_to_start_over(self) -> str:
        command = f"dsec checkpoint resume {self._run} --fresh --store {self.address.url}"
        return f"`{command}`, then retry the run (or {ENV_FRESH_START}=1 in its environment)"

    def _spool(self) -> SpoolSet:
        if self._spool_set is None:
            seat = self._seat
            self._spool_set = SpoolSet.open(seat.spool, self.address, self._run, seat.world_size)
        return self._spool_set

    def _drain_earlier_snapshots(self) -> None:
        """A snapshot of this attempt that still waits for its upload is newer than any commit."""
        seat = self._seat
        waiting = [spooled for spooled in self._spool().steps() if spooled.is_complete(seat.world_size)]
        if not waiting or seat.tell is None:
            return
        # Said again, because the rank that wrote it may have been killed before it said so.
        seat.tell("spooled", rank=0, step=waiting[0].step, path=str(waiting[0].directory), started_at=seat.clock.now())
        if not self.wait():
            say(f"run {self._run}: an earlier snapshot is still being uploaded; resuming without it")


def say(text: str) -> None:
    """One line to the run's log."""
    print(f"checkpoints: {text}", file=sys.stderr, flush=True)
