"""The same on PostgreSQL: everything on it once, and stories of other files with their ledger there."""

import inspect
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from dsec_blocks.model.gangs import GangState
from tests.fixtures.forking import Zygote
from tests.fixtures.prefect import PrefectServer, client_settings
from tests.integration import test_cancelling, test_endings, test_giving_way
from tests.integration.site import Site

pytestmark = pytest.mark.slow
STORIES: tuple[Callable[..., None], ...] = (
    test_endings.test_a_run_that_loses_a_member_is_restarted_whole_and_not_left_running_15945,
    test_giving_way.test_when_the_preemptor_is_cancelled_its_victims_are_left_in_peace_or_resume,
    test_cancelling.test_a_run_cancelled_while_no_worker_lives_is_stopped_by_the_next_19593,
)


@pytest.fixture
def site(
    prefect_server: PrefectServer, zygote: Zygote | None, migrated_postgres_url: str, tmp_path: Path
) -> Iterator[Site]:
    site = Site(server=prefect_server, home=tmp_path, zygote=zygote, ledger_url=migrated_postgres_url)
    yield site
    site.close()


@pytest.mark.parametrize("story", STORIES, ids=lambda story: story.__name__.removeprefix("test_"))
def test_a_story_of_another_file_has_the_same_end(site: Site, story: Callable[..., None]) -> None:
    assert list(inspect.signature(story).parameters) == ["site"]
    story(site)
    assert site.ledger_url.startswith("postgresql://")
    assert site.ledger.check(site.pool) == []


def test_everything_also_works_on_postgresql(
    prefect_server_postgres: PrefectServer,
    zygote: Zygote | None,
    postgres_url: str,
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    home = tmp_path_factory.mktemp("postgres-site")
    with client_settings(prefect_server_postgres):
        site = Site(server=prefect_server_postgres, home=home, ledger_url=postgres_url, zygote=zygote)
        try:
            notes = home / "notes"
            site.start_worker()
            low = site.submit(
                "sleeper", parameters={"where": str(notes), "seconds": 3}, nodes=2, devices_per_node=4, grace=1
            )
            site.wait_gang(low, GangState.RUNNING)
            site.wait("its user code", notes.exists)
            site.commit(low)
            urgent = site.submit("hello", nodes=2, devices_per_node=4, priority=50)
            site.wait_state(urgent, "COMPLETED", seconds=60)
            site.wait_state(low, "COMPLETED", seconds=60)
            site.wait_gang(low, GangState.ENDED)
            assert site.ledger.check(site.pool) == []
        finally:
            site.close()
