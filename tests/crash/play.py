"""Playing one case: a fresh world, the story, the strike, and the judgement."""

import os
import shutil
from dataclasses import dataclass
from pathlib import Path
from tempfile import mkdtemp

from tests.crash import invariants
from tests.crash.cases import Case
from tests.crash.stories import ASIDE, FORK_SERVER, STORIES
from tests.crash.world import Strike, World
from tests.fixtures.forking import Zygote
from tests.fixtures.prefect import PrefectServer

EITHER_WAY = ("FAILED", "CRASHED")
FORGIVING = frozenset({"death", "deaf", "withdrawn", "orphans"})
"""Stories that kill a gang themselves, so that steps after the last commit run again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What came of a case: the sentences that do not hold, and what was seen."""

    broken: tuple[str, ...]
    passed: frozenset[str]
    report: str


@dataclass(kw_only=True)
class Stage:
    """Where worlds are made."""

    server: PrefectServer
    zygote: Zygote | None
    root: Path
    ledger_url: str = ""
    """The ledger of the one world that is made; empty for a SQLite file in each."""

    def play(self, case: Case | None, *, story: str = "", second: Strike | None = None) -> Outcome:
        """Play `case` (or the story without any fault)."""
        story = case.story if case else story
        home = Path(mkdtemp(prefix=f"{story}-", dir=self.root))
        world = World(
            server=self.server,
            home=home,
            ledger_url=self.ledger_url,
            zygote=self.zygote,
            strike=case.strike if case else None,
            second=second,
            fork_server=FORK_SERVER.get(story, "fork-server"),
            aside=ASIDE.get(story, ""),
            forgives=_forgiven(case),
            may_repeat=story in FORGIVING or (case is not None and case.may_repeat) or second is not None,
        )
        try:
            broken, passed = self._tell(world, story)
            report = world.report() if broken else ""
            _keep(home.name if case is None else str(case), [*broken, report])
            return Outcome(broken=tuple(broken), passed=passed, report=report)
        finally:
            world.close()
            shutil.rmtree(home, ignore_errors=True)

    def _tell(self, world: World, story: str) -> tuple[list[str], frozenset[str]]:
        passed: frozenset[str] = frozenset()
        try:
            world.begin()
            STORIES[story](world)
            passed = frozenset(world.points_passed())
            broken = invariants.broken(world)
            if world.strike is not None and not world.was_struck:
                broken.append(f"{world.strike.point} was not reached in story {story}")
            return broken + invariants.broken_by_a_second_recovery(world), passed
        except Exception as error:
            return [f"{type(error).__name__}: {error}"], passed


def _forgiven(case: Case | None) -> tuple[str, ...]:
    """Final states that a run may have besides those that its story expects."""
    if case is None:
        return ()
    # A failed run whose supervisor was lost before it could say so is started again, and its rank fails only once.
    started_again = ("COMPLETED",) if case.story == "failing_rank" else ()
    return (*(EITHER_WAY if case.may_fail else ()), *started_again)


def _keep(name: str, lines: list[str]) -> None:
    """Long lanes are watched while they run: DSEC_CRASH_REPORTS=FOLDER gets a file for each case as it ends."""
    folder = os.environ.get("DSEC_CRASH_REPORTS")
    if folder:
        Path(folder).mkdir(parents=True, exist_ok=True)
        (Path(folder) / f"{name}.{'bad' if len(lines) > 1 else 'ok'}").write_text("\n".join(lines))
