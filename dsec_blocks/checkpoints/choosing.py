"""Which commit a run resumes from: all ranks the same one, while retention may go on beside them.

Rank 0 names the commit to try and the others try that one: each reading HEAD for itself could see another. Between the
moment in which HEAD was read and the last shard, a snapshot that was still on its way may be committed, and retention
then removes what HEAD named before. So a commit that cannot be read is a reason to read HEAD again, not to give up.
"""

import json
from collections.abc import Callable, Sequence
from dataclasses import asdict
from typing import Any

from dsec_blocks.checkpoints.commit_log import CommitLog
from dsec_blocks.checkpoints.heads import Commit, Head
from dsec_blocks.checkpoints.shards import Shard

Agree = Callable[[str, Any], Any]
"""Meets all ranks at a name: any of booleans, the largest of other values."""
_NONE = ""


def choose(
    log: CommitLog,
    *,
    rank: int,
    agree: Agree,
    load: Callable[[Commit], Shard | None],
    order: Callable[[Head], Sequence[Commit]],
) -> tuple[Commit | None, Shard | None, list[Commit]]:
    """The first commit, in the `order` of HEAD, that every rank can `load` its shard of; and those found torn before.

    None when HEAD names no commit that was not tried.
    """
    torn: list[Commit] = []
    while True:
        proposed = _NONE
        if rank == 0:
            left = [commit for commit in order(log.head()) if commit not in torn]
            proposed = json.dumps(asdict(left[0])) if left else _NONE
        told = agree("candidate", proposed)
        if told == _NONE:
            return None, None, torn
        commit = Commit(**json.loads(told))
        shard = load(commit)
        if not agree("torn", shard is None):
            return commit, shard, torn
        torn.append(commit)
