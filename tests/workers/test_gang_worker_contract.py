"""The parts of Prefect that are not documented API and that the worker stands on, by name and signature."""

import importlib
import inspect
from types import SimpleNamespace
from typing import Any

import prefect
import prefect.context as prefect_context
import prefect.engine as prefect_engine
import pytest
from prefect import flow_engine
from prefect._internal import control_listener
from prefect.cli.flow_run import execute
from prefect.client.base import PrefectHttpxAsyncClient, PrefectHttpxSyncClient
from prefect.client.orchestration import PrefectClient, SyncPrefectClient
from prefect.client.schemas.objects import FlowRunPolicy
from prefect.deployments.steps import core as steps
from prefect.events.clients import get_events_subscriber
from prefect.logging import handlers
from prefect.settings import PREFECT_CLIENT_MAX_RETRIES
from prefect.settings.models.client import ClientSettings
from prefect.workers.base import BaseJobConfiguration, BaseWorker

from dsec_workers.gang_worker import GangWorker


@pytest.fixture(scope="module")
def server() -> Any:
    """Prefect's server, imported only where it is looked into: it costs seconds in each process."""
    importlib.import_module("prefect.server.models")  # the others import in a circle unless this is first
    from prefect.server.orchestration import core_policy, global_policy
    from prefect.server.schemas import filters, states

    return SimpleNamespace(core_policy=core_policy, global_policy=global_policy, filters=filters, states=states)


def _parameters(function: object) -> list[str]:
    return list(inspect.signature(function).parameters)  # type: ignore[arg-type]


def test_the_version_is_the_one_that_was_measured() -> None:
    assert prefect.__version__.startswith("3.9.")


@pytest.mark.parametrize(
    ("hook", "parameters"),
    [
        ("setup", ["self"]),
        ("teardown", ["self", "exc_info"]),
        ("start", ["self", "run_once", "with_healthcheck", "printer"]),
        ("sync_with_backend", ["self"]),
        ("_sync_and_initialize", ["self"]),
        ("_emit_worker_started_event", ["self"]),
        ("is_worker_still_polling", ["self", "query_interval_seconds"]),
        ("kill_infrastructure", ["self", "infrastructure_pid", "configuration", "grace_seconds"]),
        ("run", ["self", "flow_run", "configuration", "task_status"]),
        ("get_default_base_job_template", []),
    ],
)
def test_hooks_of_the_base_worker(hook: str, parameters: list[str]) -> None:
    assert _parameters(getattr(BaseWorker, hook)) == parameters
    assert _parameters(getattr(GangWorker, hook)) == parameters


def test_attributes_that_the_worker_sets_or_reads_exist() -> None:
    source = inspect.getsource(BaseWorker)
    for attribute in (
        "_work_pool",
        "_work_pool_name",
        "_last_polled_time",
        "_started_event",
        "heartbeat_interval_seconds",
    ):
        assert f"self.{attribute}" in source, attribute


def test_the_type_is_registered_and_found_by_the_entry_point() -> None:
    assert BaseWorker.get_worker_class_from_type("dsec-gang") is GangWorker


def test_job_variables_are_merged_and_prepared_by_these() -> None:
    assert _parameters(BaseJobConfiguration.from_template_and_values) == ["base_job_template", "values", "client"]
    assert _parameters(BaseJobConfiguration.prepare_for_flow_run) == [
        "self", "flow_run", "deployment", "flow", "work_pool", "worker_name", "worker_id",
    ]  # fmt: skip


def test_requests_go_through_one_method_of_the_client() -> None:
    assert _parameters(PrefectClient.request)[:5] == ["self", "method", "path", "params", "path_params"]
    assert PREFECT_CLIENT_MAX_RETRIES.name == "PREFECT_CLIENT_MAX_RETRIES"


def test_the_retry_policy_has_the_fields_that_we_rewrite() -> None:
    assert {"retries", "retry_delay", "retry_type", "pause_keys", "resuming"} <= set(FlowRunPolicy.model_fields)


def test_runs_can_be_filtered_by_due_time(server: Any) -> None:
    assert "next_scheduled_start_time" in server.filters.FlowRunFilter.model_fields
    assert {"before_", "after_"} <= set(server.filters.FlowRunFilterNextScheduledStartTime.model_fields)


def test_relinquish_is_an_intent_that_only_the_execute_command_reads_from_the_environment() -> None:
    assert callable(control_listener._set_intent)
    assert "SIGTERM_BEHAVIOR" in inspect.getsource(inspect.getmodule(execute))  # type: ignore[arg-type]


def test_the_flow_process_runs_a_flow_through_these() -> None:
    assert _parameters(flow_engine._send_heartbeats) == ["engine", "join_on_exit"]
    assert "observe_flow_run_suspension(" in inspect.getsource(flow_engine.BaseFlowRunEngine)
    assert _parameters(PrefectHttpxSyncClient.send) == _parameters(PrefectHttpxAsyncClient.send)
    assert _parameters(PrefectHttpxSyncClient.send)[:2] == ["self", "request"]
    assert _parameters(handlers.set_api_log_sink) == ["sink"]
    assert "APILogWorker.instance().send(log)" in inspect.getsource(handlers.emit_api_log)
    assert "get_events_client(checkpoint_every=1)" in inspect.getsource(steps)
    assert _parameters(prefect_engine._drive_run_flow_result) == ["flow", "run_result"]
    assert callable(control_listener.clear_intent)
    assert callable(prefect_context.refresh_global_settings_context)
    assert {"server_version_check_enabled", "csrf_support_enabled"} <= set(ClientSettings.model_fields)


def test_the_engine_updates_its_run_with_a_method_that_takes_the_infrastructure_id() -> None:
    for client in (PrefectClient, SyncPrefectClient):
        assert _parameters(client.update_flow_run)[:2] == ["self", "flow_run_id"]
        assert "infrastructure_pid" in _parameters(client.update_flow_run)
    assert "client.update_flow_run(\n                        flow_run_id=" in inspect.getsource(
        flow_engine.FlowRunEngine
    )


def test_a_run_that_is_ended_before_it_ran_gets_a_start_time_and_keeps_it(server: Any) -> None:
    """The trace by which a first start sees that its claim has replaced somebody's Completed."""
    source = inspect.getsource(server.global_policy.SetEndTime.before_transition)
    assert "context.run.start_time = context.proposed_state.timestamp" in source
    assert "run.start_time = None" not in inspect.getsource(server.global_policy)


def test_events_can_be_subscribed_to_and_survive_a_clean_close() -> None:
    assert {"filter", "reconnect_on_clean_close"} <= set(_parameters(get_events_subscriber))


def test_rules_of_the_server_that_claims_and_cancellations_rest_on(server: Any) -> None:
    core_policy, StateType = server.core_policy, server.states.StateType
    assert {
        StateType.PENDING, StateType.CANCELLING, StateType.RUNNING, StateType.CANCELLED,
    } == core_policy.PreventPendingTransitions.FROM_STATES  # fmt: skip
    assert {StateType.CANCELLING} == core_policy.BypassCancellingFlowRunsWithNoInfra.TO_STATES
    assert {StateType.CANCELLING} == core_policy.EnforceCancellingToCancelledTransition.FROM_STATES
    assert "transition_id" in inspect.getsource(core_policy.PreventDuplicateTransitions)
