"""What a worker counts, and under which labels."""

from typing import Any

import pytest

from dsec_blocks.model.gangs import Gang, GangState
from dsec_blocks.model.requests import GangRequest
from dsec_workers.metrics import WorkerMetrics, size_class
from tests.fixtures.clock import ManualClock

NOW = 1_000.0


@pytest.fixture
def metrics() -> WorkerMetrics:
    return WorkerMetrics("gpus")


def value(metrics: WorkerMetrics, name: str, **labels: str) -> float | None:
    return metrics.registry.get_sample_value(name, {"pool": "gpus", **labels})


def gang(**fields: Any) -> Gang:
    return Gang(
        run_id="a",
        name="a",
        pool="gpus",
        team="vision",
        request=GangRequest(nodes=2, devices_per_node=4),
        state=GangState.RESERVED,
        submitted_at=900.0,
        eligible_at=940.0,
        **fields,
    )


@pytest.mark.parametrize(("devices", "size"), [(0, "0-1"), (1, "0-1"), (8, "2-8"), (9, "9-64"), (512, "65+")])
def test_gangs_of_about_the_same_size_are_one_class(devices: int, size: str) -> None:
    assert size_class(devices) == size


def test_the_wait_of_a_first_start_counts_from_due_and_that_of_a_gang_that_ran_does_not(
    metrics: WorkerMetrics,
) -> None:
    metrics.claimed(gang(), NOW)
    metrics.claimed(gang(evictions=1), NOW + 500)
    metrics.claimed(gang(infrastructure_restarts=1), NOW + 500)
    assert value(metrics, "dsec_queue_wait_seconds_count", team="vision", size="2-8") == 1
    assert value(metrics, "dsec_queue_wait_seconds_sum", team="vision", size="2-8") == 60


def test_the_decision_log_is_counted_and_states_that_flows_invent_are_one(metrics: WorkerMetrics) -> None:
    def decided(stage: str, outcome: str, **detail: Any) -> None:
        metrics.decided(stage, outcome, team="vision", detail=detail)

    decided("plan", "admit")
    decided("evict", "noticed")
    decided("claim", "undone")
    decided("end", "requeued", kind="evicted")
    decided("end", "requeued", kind="lost")
    decided("end", "Completed", kind="exited")
    decided("end", "My own state", kind="exited")
    decided("wish", "evict")
    assert value(metrics, "dsec_admissions_total", team="vision") == 1
    assert value(metrics, "dsec_evictions_total", team="vision") == 1
    assert value(metrics, "dsec_claims_undone_total", team="vision") == 1
    assert value(metrics, "dsec_restarts_total", team="vision", cause="lost") == 1
    assert value(metrics, "dsec_restarts_total", team="vision", cause="evicted") is None, "an eviction is no failure"
    assert value(metrics, "dsec_runs_ended_total", team="vision", state="Completed") == 1
    assert value(metrics, "dsec_runs_ended_total", team="vision", state="other") == 1


def test_a_ledger_that_fails_is_down_until_it_answers(metrics: WorkerMetrics) -> None:
    metrics.ledger("write", 0.5, True)
    assert (value(metrics, "dsec_ledger_up"), metrics.ledger_answers) == (0, False)
    assert value(metrics, "dsec_ledger_errors_total", kind="write") == 1
    metrics.ledger("read", 0.01, False)
    assert (value(metrics, "dsec_ledger_up"), metrics.ledger_answers) == (1, True)
    assert value(metrics, "dsec_ledger_transaction_seconds_count", kind="write") == 1


def test_a_new_term_is_counted_and_begins_with_prefect_there(metrics: WorkerMetrics) -> None:
    assert value(metrics, "dsec_leader") == 0
    metrics.leads(True)
    metrics.prefect_away(True)
    assert (value(metrics, "dsec_leader"), value(metrics, "dsec_prefect_api_away")) == (1, 1)
    metrics.leads(False)
    assert (value(metrics, "dsec_leader"), value(metrics, "dsec_prefect_api_away")) == (0, 0)
    assert value(metrics, "dsec_terms_total") == 1


def test_a_plan_is_timed_and_answers_as_before(metrics: WorkerMetrics) -> None:
    clock = ManualClock()

    def plan(number: int) -> int:
        clock.advance(2.0)
        return number + 1

    assert metrics.timing(plan, clock)(1) == 2
    assert value(metrics, "dsec_plan_seconds_sum") == 2.0
