"""The matrix: fault point × mode, each with the story that reaches the point; and which part of it runs today."""

import json
import os
import random
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cache
from pathlib import Path

from dsec_blocks.gateways.faults import MODES
from tests.crash.stories import STORIES
from tests.crash.world import Strike

POINTS = Path(__file__).with_name("points.json")
REACHED = Path(__file__).with_name("reached.json")
"""Which story reaches which points; written by `DSEC_CRASH_RECORD=1 pytest tests/crash/test_reached.py`."""

ALWAYS = (
    "ledger.admit", "ledger.claimed", "prefect.claim.pending", "prefect.claim.policy", "cluster.launch",
    "supervisor.record.write", "ledger.launched", "ledger.started", "cluster.notify", "supervisor.notice.write",
    "supervisor.stop_before.write", "supervisor.event.append", "supervisor.exit.write", "ledger.release_devices",
    "checkpoint.commit.put", "checkpoint.head.publish", "checkpoint.manifest.put", "ledger.leave",
    "prefect.requeue.pid", "prefect.requeue.write", "ledger.requeue", "ledger.end", "ledger.take_lease",
)  # fmt: skip
"""The points on whose exactness everything rests: every `make test` strikes a fifth of them, in turn."""
PARTS = 5
ROTATING = 4
"""How many of the other points a `make test` strikes besides."""

REPLACES_THE_PROCESS = frozenset({"flow.exec", "rank.exec"})
"""Nothing comes after an exec that succeeds, so `kill_after` and `lost` cannot be."""
IN_USER_CODE = ("gang.", "rank.", "flow.exec", "checkpoint.spool.", "checkpoint.head.", "checkpoint.retention.")
"""Points in the processes that run a user's code: what fails there may fail the run, as any I/O error of theirs."""
ONLY = {"checkpoint.head.prune": "takeover", "prefect.reason.write": "cancellation"}
"""Points that other stories reach as well, but not for certain."""
FAVOURITES = ("eviction", "cancellation", "restart", "takeover")
"""Stories to be preferred where several reach a point: those with the most to lose."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One story, struck once."""

    strike: Strike
    story: str

    def __str__(self) -> str:
        return f"{self.strike}@{self.story}"

    @property
    def may_fail(self) -> bool:
        """Whether a run may end Failed instead of Completed."""
        return self.strike.point.startswith(IN_USER_CODE) and self.strike.mode != "stall"

    @property
    def may_repeat(self) -> bool:
        """Whether steps after the last commit may run again: not where only the worker was struck."""
        return not self.strike.point.startswith(("ledger.", "prefect."))

    @property
    def replay(self) -> str:
        """The command that runs this case alone."""
        return f"DSEC_CRASH_CASE={self} pytest tests/crash -k matrix"


def told_of_points() -> dict[str, dict[str, str]]:
    """Each point's module and scope."""
    told: dict[str, dict[str, str]] = json.loads(POINTS.read_text())
    return told


def scopes() -> dict[str, str]:
    """Each point's scope: `run` for the path of a run, which the matrix is made of."""
    return {name: told["scope"] for name, told in told_of_points().items()}


@cache
def reached() -> dict[str, frozenset[str]]:
    """The points that each story reaches when nothing fails."""
    return {story: frozenset(points) for story, points in json.loads(REACHED.read_text()).items()}


def story_for(point: str) -> str | None:
    """The story in which to strike at `point`."""
    if point in ONLY:
        return ONLY[point]
    order = [*FAVOURITES, *(story for story in STORIES if story not in FAVOURITES)]
    return next((story for story in order if point in reached().get(story, ())), None)


def matrix() -> list[Case]:
    """Every case there is."""
    found = []
    for point, scope in sorted(scopes().items()):
        story = story_for(point)
        if scope == "run" and story is not None:
            found += [Case(strike=Strike(point=point, mode=mode), story=story) for mode in modes_of(point)]
    return found


def modes_of(point: str) -> tuple[str, ...]:
    """The ways in which `point` can fail."""
    return tuple(m for m in MODES if point not in REPLACES_THE_PROCESS or m not in ("kill_after", "lost"))


def seed() -> int:
    """Today, unless DSEC_CRASH_SEED says otherwise."""
    return int(os.environ.get("DSEC_CRASH_SEED") or datetime.now(UTC).toordinal())


def todays(number: int) -> list[Case]:
    """The rotating part: every fifth one of `ALWAYS` in one mode, and the next few of the others.

    Twenty-five days in a row see all modes of `ALWAYS`, and three weeks every other point.
    """
    by_point: dict[str, list[Case]] = {}
    for case in matrix():
        by_point.setdefault(case.strike.point, []).append(case)
    others = sorted(set(by_point) - set(ALWAYS))
    random.Random(0).shuffle(others)
    first = number * ROTATING
    turns = [
        (point, number // PARTS + place)
        for place, point in enumerate(ALWAYS)
        if place % PARTS == number % PARTS and point in by_point
    ]
    if others:
        turns += [(others[n % len(others)], n // len(others) + n) for n in range(first, first + ROTATING)]
    return [by_point[point][turn % len(by_point[point])] for point, turn in turns]


def struck_in(story: str) -> set[str]:
    """The points that the matrix strikes in this story: without a fault it passes each of them."""
    return {case.strike.point for case in matrix() if case.story == story}


def chosen() -> list[Case]:
    """What this session strikes: the cases or the part that the environment names, else today's."""
    if names := os.environ.get("DSEC_CRASH_CASE"):
        return [named(name) for name in names.split(",")]
    if part := os.environ.get("DSEC_CRASH_PART"):
        return part_of(matrix(), part)
    return todays(seed())


def part_of(cases: list[Case], text: str) -> list[Case]:
    """Part `i/n` of the cases, counted from 1: all n parts together are the whole, and no case is in two."""
    index, _, count = text.partition("/")
    if not (index.isdigit() and count.isdigit() and 1 <= int(index) <= int(count)):
        raise ValueError(f"DSEC_CRASH_PART={text!r} is not i/n with 1 ≤ i ≤ n, for example 3/20")
    return cases[int(index) - 1 :: int(count)]


def named(text: str) -> Case:
    """The case called `point:mode[:visit][@story]`."""
    strike, _, story = text.partition("@")
    point, mode, *visit = strike.split(":")
    chosen = story or story_for(point)
    if mode not in MODES or chosen not in STORIES:
        raise ValueError(f"{text!r} is not point:mode[:visit][@story]; modes are {MODES}, stories {tuple(STORIES)}")
    return Case(strike=Strike(point=point, mode=mode, visit=int(visit[0]) if visit else 0), story=chosen)
