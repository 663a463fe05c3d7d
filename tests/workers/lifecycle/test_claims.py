"""The retry policy is absolute, and an infrastructure id names its attempt."""

import pytest

from dsec_blocks.model.gangs import GangState
from dsec_workers.lifecycle.claims import attempt_of, differs, pid_of, policy
from tests.workers.lifecycle.records import gang, run, state


@pytest.mark.parametrize(
    ("evictions", "restarts", "user_retries", "written"),
    [(0, 0, 2, 2), (1, 0, 2, 3), (2, 1, 2, 5), (3, 0, 0, 3), (2, 0, None, None)],
)
def test_retries_are_the_users_plus_what_was_our_doing(
    evictions: int, restarts: int, user_retries: int | None, written: int | None
) -> None:
    evicted = gang(GangState.RESERVED, evictions=evictions, infrastructure_restarts=restarts)
    pending = run(state("SCHEDULED"), policy={"retries": 99})
    assert policy(pending, evicted, user_retries)["retries"] == written


def test_the_whole_policy_is_sent_and_a_retry_in_a_lost_process_is_forgotten() -> None:
    """A PATCH replaces the policy whole; in_process would hide the run from every poll."""
    before = {"retries": 1, "retry_delay": 7, "pause_keys": ["once"], "resuming": True, "retry_type": "in_process"}
    assert policy(run(state("SCHEDULED"), policy=before), gang(), 1) == {
        "retries": 1, "retry_delay": 7, "pause_keys": ["once"], "resuming": True, "retry_type": None,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("case", "present", "evictions", "user_retries", "asks"),
    [
        ("a first start, the flow's own retries", {"retries": None, "retry_delay": None}, 0, None, False),
        ("a first start, the run's own retries", {"retries": 2, "retry_type": None}, 0, 2, False),
        ("a run without any policy", {}, 0, None, False),
        ("after an eviction", {"retries": 2, "retry_type": None}, 1, 2, True),
        ("after an eviction that was counted before a kill -9", {"retries": 3}, 1, 2, False),
        ("after a retry in a process that is lost", {"retries": 2, "retry_type": "in_process"}, 0, 2, True),
    ],
)
def test_the_policy_is_written_only_where_it_says_something_new(
    case: str, present: dict[str, object], evictions: int, user_retries: int | None, asks: bool
) -> None:
    pending = run(state("SCHEDULED"), policy=present)
    wanted = policy(pending, gang(GangState.RESERVED, evictions=evictions), user_retries)
    assert differs(wanted, pending.policy) is asks, case


def test_an_infrastructure_id_names_pool_run_and_attempt() -> None:
    assert attempt_of(pid_of("pool", gang(attempt=4))) == ("pool", "run", 4)


@pytest.mark.parametrize("foreign", ["", "12345", "node:1", "dsec:pool:run:x", "k8s:pool:run:1"])
def test_a_foreign_infrastructure_id_is_nobodys(foreign: str) -> None:
    assert attempt_of(foreign) is None
