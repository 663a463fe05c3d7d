"""One stage a session, and cases that run side by side while their tests wait for them in order."""

import os
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.crash.cases import Case
from tests.crash.play import Outcome, Stage
from tests.fixtures.disks import small_disk
from tests.fixtures.forking import Zygote
from tests.fixtures.prefect import PrefectServer

__all__ = ["small_disk"]
JOBS = int(os.environ.get("DSEC_CRASH_JOBS") or 3)
"""Cases at a time on two cores: most of a case is waiting."""


@pytest.fixture(scope="session")
def stage(prefect_server: PrefectServer, zygote: Zygote | None, tmp_path_factory: pytest.TempPathFactory) -> Stage:
    return Stage(server=prefect_server, zygote=zygote, root=Path(tmp_path_factory.mktemp("crash")))


class Ahead:
    """Begins the cases of all selected tests at once, `JOBS` at a time; a test asks for its own."""

    def __init__(self, stage: Stage) -> None:
        self._stage = stage
        self._pool = ThreadPoolExecutor(JOBS)
        self._futures: dict[str, Future[Outcome]] = {}

    def begin(self, name: str, play: Callable[[Stage], Outcome]) -> None:
        if name not in self._futures:
            self._futures[name] = self._pool.submit(play, self._stage)

    def begin_story(self, story: str) -> None:
        """The story without a fault."""
        self.begin(story, lambda stage: stage.play(None, story=story))

    def outcome(self, name: str) -> Outcome:
        return self._futures[name].result()

    def close(self) -> None:
        self._pool.shutdown(cancel_futures=True)


@pytest.fixture(scope="session")
def ahead(stage: Stage, request: pytest.FixtureRequest) -> Iterator[Ahead]:
    ahead = Ahead(stage)
    for item in request.session.items:
        if "ahead" not in getattr(item, "fixturenames", ()) or not hasattr(item, "callspec"):
            continue
        case, story = item.callspec.params.get("case"), item.callspec.params.get("story")
        if isinstance(case, Case):
            ahead.begin(str(case), lambda stage, case=case: stage.play(case))
        elif isinstance(story, str):
            ahead.begin_story(story)
    try:
        yield ahead
    finally:
        ahead.close()
