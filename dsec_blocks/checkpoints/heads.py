"""HEAD: the one small value that says which checkpoints of a run exist and who may add to them.

Pure. A HEAD names a generation and its commits. A new attempt of the run raises the generation before it reads; a
committer whose generation is no longer HEAD's gives up. So what a run resumes from can never be changed under it by
an attempt that everybody believed dead. Newest means the highest (generation, step), not the highest step: after a
torn checkpoint a run continues from an older step, and its later commits outrank the torn attempt's.
"""

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from dsec_blocks.model.errors import CheckpointFenced, CheckpointMissing

SCHEMA = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Commit:
    """One checkpoint: `manifest` is its manifest's key, `digest` that manifest's sha256, `parent` the one before."""

    step: int
    attempt: int
    manifest: str
    digest: str
    parent: str | None = None

    @property
    def order(self) -> tuple[int, int]:
        """Later is greater."""
        return (self.attempt, self.step)


@dataclass(frozen=True, slots=True, kw_only=True)
class Head:
    """What a run can resume from. `base` is the digest of the commit that the current generation resumed from."""

    generation: int = 0
    commits: tuple[Commit, ...] = ()
    base: str | None = None
    fresh: str = ""
    """The last value of DSEC_FRESH_START that was obeyed: each value starts over once."""
    committed_ever: bool = False
    """Whether there is anything to lose: distinguishes "none yet" from "all gone"."""
    resume_from: str | None = None
    """Digest of the commit that somebody chose to go back to; until a later generation commits, only it is tried."""
    start_over: bool = False
    """Whether somebody chose that the next generation begins at step 0; it then forgets all commits."""
    chosen_in: int = 0
    """The generation in which somebody chose. What it still commits, leaving, does not undo the choice."""

    @property
    def newest_first(self) -> tuple[Commit, ...]:
        """The commits in the order in which a resume tries them."""
        return tuple(sorted(self.commits, key=lambda commit: commit.order, reverse=True))

    @property
    def to_try(self) -> tuple[Commit, ...]:
        """What a resume may use, in order: a choice that somebody made is not replaced by another commit."""
        chosen = tuple(commit for commit in self.commits if commit.digest == self.resume_from)
        return chosen if self.resume_from is not None else self.newest_first

    def to_json(self) -> dict[str, Any]:
        """JSON-ready fields."""
        return {"schema": SCHEMA, **dataclasses.asdict(self), "commits": [dataclasses.asdict(c) for c in self.commits]}

    @classmethod
    def from_json(cls, fields: Mapping[str, Any]) -> "Head":
        """The HEAD that `to_json` wrote."""
        known = {f.name: fields[f.name] for f in dataclasses.fields(cls) if f.name in fields}
        return cls(**{**known, "commits": tuple(Commit(**commit) for commit in fields["commits"])})


def raised(head: Head | None, *, run: str, attempt: int | None, fresh: str = "") -> Head:
    """HEAD as attempt `attempt` (None: the next one) finds and owns it; `fresh` that is new forgets all commits.

    Raises `CheckpointFenced` when a newer attempt owns it already.
    """
    head = head or Head()
    generation = head.generation + 1 if attempt is None else attempt
    if head.generation > generation:
        raise fenced(run, attempt=generation, by=head.generation)
    if fresh and fresh != head.fresh:
        return Head(generation=generation, fresh=fresh)
    if head.start_over and generation > head.chosen_in:
        return Head(generation=generation, fresh=head.fresh, start_over=True, chosen_in=head.chosen_in)
    base = head.base if generation == head.generation else None
    return dataclasses.replace(head, generation=generation, base=base)


def committed(head: Head, commit: Commit, *, run: str, keep: int, keep_every: int = 0) -> Head:
    """HEAD with one more commit, the newest `keep` kept, and the one the generation resumed from.

    With `keep_every` the first commit of each so many steps is kept as well, for good.

    Returns `head` itself when there is nothing to add: the commit is there, or a later one of its attempt is.

    Raises `CheckpointFenced` when the commit's attempt no longer owns HEAD.
    """
    if head.generation != commit.attempt:
        raise fenced(run, attempt=commit.attempt, by=head.generation)
    own = [known for known in head.commits if known.attempt == commit.attempt]
    if any(known.step >= commit.step for known in own):
        return head
    parent = max(own, key=lambda known: known.step).digest if own else head.base
    commits = Head(commits=(*head.commits, dataclasses.replace(commit, parent=parent))).newest_first
    lasting = milestones(commits, keep_every)
    wanted = {head.base, head.resume_from}
    kept = tuple(c for i, c in enumerate(commits) if i < max(1, keep) or c.digest in wanted or c in lasting)
    after = dataclasses.replace(head, commits=kept, committed_ever=True)
    if commit.attempt <= head.chosen_in and (head.resume_from or head.start_over):
        return after
    return dataclasses.replace(after, resume_from=None, start_over=False)


def milestones(commits: Sequence[Commit], every: int) -> frozenset[Commit]:
    """The earliest commit of each `every` steps, the first `every` left out; none if `every` is 0."""
    earliest: dict[int, Commit] = {}
    for commit in commits:
        period = commit.step // every if every else 0
        if period and (period not in earliest or _age(commit) < _age(earliest[period])):
            earliest[period] = commit
    return frozenset(earliest.values())


def chosen(head: Head, step: int, *, run: str) -> Head:
    """HEAD whose next attempt resumes from the newest commit of `step`. Nothing is removed by it.

    Raises `CheckpointMissing` when there is none.
    """
    commit = with_step(head, step, run=run)
    return dataclasses.replace(head, resume_from=commit.digest, start_over=False, chosen_in=head.generation)


def started_over(head: Head) -> Head:
    """HEAD whose next attempt begins at step 0. Until that begins, nothing is forgotten."""
    return dataclasses.replace(head, resume_from=None, start_over=True, chosen_in=head.generation)


def without(head: Head, step: int, *, run: str) -> tuple[Head, tuple[Commit, ...]]:
    """HEAD without the commits of `step`, and those. Raises `CheckpointMissing` when there is none."""
    with_step(head, step, run=run)
    gone = tuple(commit for commit in head.commits if commit.step == step)
    digests = {commit.digest for commit in gone}
    kept = tuple(commit for commit in head.commits if commit not in gone)
    base = None if head.base in digests else head.base
    resume_from = None if head.resume_from in digests else head.resume_from
    return dataclasses.replace(head, commits=kept, base=base, resume_from=resume_from), gone


def with_step(head: Head, step: int, *, run: str) -> Commit:
    """The newest commit of `step`. Raises `CheckpointMissing` naming the steps that there are."""
    found = next((commit for commit in head.newest_first if commit.step == step), None)
    if found is None:
        steps = ", ".join(str(known) for known in sorted({commit.step for commit in head.commits})) or "none"
        raise CheckpointMissing(f"run {run}: there is no commit of step {step}; there are: {steps}")
    return found


def _age(commit: Commit) -> tuple[int, int]:
    return (commit.step, commit.attempt)


def resumed(head: Head, *, base: Commit | None, torn: tuple[Commit, ...]) -> Head:
    """HEAD once the current generation has chosen what it resumes from, without the commits found torn on the way."""
    return dataclasses.replace(
        head,
        base=base.digest if base else None,
        commits=tuple(commit for commit in head.commits if commit not in torn),
    )


def fenced(run: str, *, attempt: int, by: int) -> CheckpointFenced:
    """The error for an attempt that HEAD no longer belongs to."""
    return CheckpointFenced(
        f"run {run}: attempt {attempt} may no longer commit checkpoints; attempt {by} owns them. Nothing was lost: "
        f"attempt {by} resumes from the newest commit"
    )
