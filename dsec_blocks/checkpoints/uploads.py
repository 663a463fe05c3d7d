"""Taking snapshots from the spool to the store, one step at a time.

What is done is decided from the spool and HEAD alone, so it may be killed at any instruction and started again. Only
the newest whole checkpoint is uploaded; older ones in the spool are superseded by it, so a slow store never fills the
node's disk.
"""

import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from dsec_blocks.checkpoints.commit_log import CommitLog
from dsec_blocks.checkpoints.shards import ShardLabel, Torn, read_label
from dsec_blocks.checkpoints.spool import SpooledStep, SpoolSet, is_closed, spool_sets
from dsec_blocks.model.clock import Clock
from dsec_blocks.model.errors import CheckpointError, CheckpointFenced

POLL_SECONDS = 0.05
RETRY_SECONDS = (0.2, 1.0, 5.0, 15.0)
UNFINISHED_SECONDS = 86_400.0
"""The age from which an upload that was neither completed nor aborted is somebody's who died."""
PATIENCE_SECONDS = 600.0
"""How long an unreachable store is tried after the gang has left, before the run goes back to its last commit."""

Tell = Callable[..., Any]


class Uploader:
    """The loop and its one step."""

    def __init__(self, *, spool: Path, tell: Tell, clock: Clock) -> None:
        self.spool = spool
        self.clock = clock
        self._tell = tell
        self._swept: set[Path] = set()

    def run(self) -> int:
        """Steps until there will be no more to do."""
        failures = 0
        closed_at: float | None = None
        while True:
            was_closed = is_closed(self.spool)
            if was_closed and closed_at is None:
                closed_at = self.clock.monotonic()
            try:
                worked = self.step()
                failures = 0
            except (OSError, CheckpointError) as error:
                say(f"upload failed, trying again: {error}")
                worked = False
                failures += 1
            if failures:
                if closed_at is not None and self.clock.monotonic() - closed_at > PATIENCE_SECONDS:
                    say(f"the store was not reachable for {PATIENCE_SECONDS:.0f} s; the run keeps its last commit")
                    return 1
                time.sleep(RETRY_SECONDS[min(failures, len(RETRY_SECONDS)) - 1])
            elif was_closed and not worked:
                self.discard_rest()
                return 0
            elif not worked:
                time.sleep(POLL_SECONDS)

    def step(self) -> bool:
        """Commit the newest whole checkpoint of each set; False when there was none.

        Raises `OSError` or `CheckpointError` when a store failed; the spool keeps what is not committed.
        """
        worked = [self._upload_newest(spool_set) for spool_set in spool_sets(self.spool)]
        return any(worked)

    def discard_rest(self) -> None:
        """The gang has left: a checkpoint that still lacks a shard will never be whole."""
        for spool_set in spool_sets(self.spool):
            for spooled in spool_set.steps():
                missing = sorted(set(range(spool_set.world_size)) - set(spooled.shards))
                say(f"run {spool_set.run}: step {spooled.step} is dropped, ranks {missing} never delivered it")
                spool_set.discard(spooled)

    def _upload_newest(self, spool_set: SpoolSet) -> bool:
        whole = [spooled for spooled in spool_set.steps() if spooled.is_complete(spool_set.world_size)]
        if not whole:
            return False
        newest, *superseded = whole
        for older in superseded:
            spool_set.discard(older)
        log = CommitLog(spool_set.address.open(), spool_set.run)
        try:
            label = self._label(newest)
            address = spool_set.address
            commit = log.commit(label, _in_rank_order(newest), keep=address.keep, keep_every=address.keep_every)
        except CheckpointFenced as error:
            say(str(error))
            spool_set.discard(newest)
            return True
        except Torn as error:
            if newest.is_complete(spool_set.world_size) and not _is_readable(newest):
                say(f"run {spool_set.run}: the spool's step {newest.step} is dropped: {error}")
                spool_set.discard(newest)
                return True
            raise
        if commit is not None:
            self._tell("committed", step=commit.step, seconds=max(0.0, self.clock.now() - label.started_at))
        spool_set.discard(newest)
        if spool_set.path not in self._swept:
            with suppress(OSError):  # a store that refuses to list them keeps no checkpoint from being committed
                log.place.drop_unfinished(before=self.clock.now() - UNFINISHED_SECONDS)
        if spool_set.path not in self._swept or commit is not None:
            self._swept.add(spool_set.path)
            log.sweep()
        return True

    def _label(self, spooled: SpooledStep) -> ShardLabel:
        labels = [read_label(path) for path in _in_rank_order(spooled)]
        return min(labels, key=lambda label: label.started_at)


def say(text: str) -> None:
    """One line to the gang's log."""
    print(f"checkpoints: {text}", file=sys.stderr, flush=True)


def _in_rank_order(spooled: SpooledStep) -> list[Path]:
    return [spooled.shards[rank] for rank in sorted(spooled.shards)]


def _is_readable(spooled: SpooledStep) -> bool:
    try:
        for path in spooled.shards.values():
            read_label(path)
    except Torn:
        return False
    return True
