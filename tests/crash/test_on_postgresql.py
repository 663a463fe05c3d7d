"""Two cases of the matrix with the ledger on PostgreSQL, whose transactions and locks are others."""

from pathlib import Path

import pytest

from tests.crash.cases import Case
from tests.crash.play import Stage
from tests.crash.world import Strike
from tests.fixtures.forking import Zygote
from tests.fixtures.prefect import PrefectServer


@pytest.mark.slow
@pytest.mark.timeout(180)
@pytest.mark.parametrize(
    "case",
    [
        pytest.param(
            Case(story="eviction", strike=Strike(point="ledger.leave", mode="lost")),
            id="the answer to a commit is lost while a gang is evicted",
        ),
        pytest.param(
            Case(story="cancellation", strike=Strike(point="ledger.admit", mode="kill_before")),
            id="the leader is killed within its transaction",
        ),
    ],
)
def test_whatever_fails_on_postgresql_everything_ends_as_it_must(
    case: Case, prefect_server: PrefectServer, zygote: Zygote | None, migrated_postgres_url: str, tmp_path: Path
) -> None:
    stage = Stage(server=prefect_server, zygote=zygote, root=tmp_path, ledger_url=migrated_postgres_url)
    outcome = stage.play(case)
    assert not outcome.broken, "\n".join([*outcome.broken, outcome.report])
