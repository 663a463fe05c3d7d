"""The flow process against a real Prefect server: ordinary flows run unchanged, evicted ones keep their state."""

import asyncio
import dataclasses
import textwrap
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from prefect.client.orchestration import get_client
from prefect.client.schemas.filters import LogFilter, LogFilterFlowRunId
from prefect.client.schemas.responses import DeploymentResponse
from prefect.client.schemas.sorting import LogSort
from prefect.states import Pending, Suspended

from dsec_blocks.model.names import ENV_INFRASTRUCTURE
from dsec_blocks.model.notices import NoticeKind
from dsec_workers.clusters.protocol import GangKey, LaunchOrder, Started
from dsec_workers.prefect_api import PrefectApi
from tests.fixtures.prefect import PrefectServer
from tests.workers.clusters.conftest import Desk, notice

pytestmark = [pytest.mark.slow, pytest.mark.timeout(180)]

FLOWS = """
import asyncio, os, time
print("imported", flush=True)
from prefect import flow, task, get_run_logger
from dsec_blocks.model.errors import Evicted

@flow
def hello(name: str = "world"):
    print(f"at {time.time():.3f} hello {name}", flush=True)
    get_run_logger().info("logged by hello")
    return 1

@flow
async def ahello(name: str = "world"):
    print(f"ahello {name}", flush=True)

def compared(known, read):
    same = [name for name in type(read).model_fields if name not in ("updated", "estimated_run_time")]
    rows = {name: (getattr(known, name), getattr(read, name)) for name in same}
    print("differs:", {name: row for name, row in rows.items() if row[0] != row[1]}, flush=True)

@flow(version="v7")
def mirror():
    from prefect.context import FlowRunContext
    from prefect.client.orchestration import get_client
    known = FlowRunContext.get().flow_run
    compared(known, get_client(sync_client=True).read_flow_run(known.id))

@flow(retries=1)
async def amirror():
    from prefect.context import FlowRunContext
    from prefect.client.orchestration import get_client
    known = FlowRunContext.get().flow_run
    async with get_client() as client:
        compared(known, await client.read_flow_run(known.id))
    if known.run_count == 1:
        raise ValueError("once more")

@flow
def failing():
    raise ValueError("on purpose")

@flow
def talking():
    get_run_logger().info("still here")
    print("talking", flush=True)
    time.sleep(60)

@flow(on_crashed=[lambda *_: print("crashed hook", flush=True)],
      on_cancellation=[lambda *_: print("cancelled hook", flush=True)])
def sleeping():
    print("sleeping", flush=True)
    time.sleep(60)

@flow
def stepping():
    @task
    def step():
        time.sleep(0.2)
    print("stepping", flush=True)
    for _ in range(300):
        step()

@flow
def evicted():
    @task
    def step():
        raise Evicted("by a test")
    step()

@flow
async def aevicted():
    raise Evicted("by a test")

@flow
def environment():
    from prefect.settings import get_current_settings
    print(get_current_settings().api.url, os.environ.get("MINE"), os.getcwd(), __file__, flush=True)
"""


async def deployed_order(
    desk: Desk, server: PrefectServer, function: str, parameters: Mapping[str, Any] | None = None, **fields: Any
) -> LaunchOrder:
    """A claimed run (Pending) of a flow that was deployed with a pull step, and the order that launches it."""
    source = desk.scripts / "source"
    source.mkdir(exist_ok=True)
    (source / "flows.py").write_text(textwrap.dedent(FLOWS))
    async with get_client() as client:
        flow_id = await client.create_flow_from_name(f"{function}-{desk.scripts.name}")
        deployment_id = await client.create_deployment(
            flow_id=flow_id,
            name=function,
            entrypoint=f"flows.py:{function}",
            pull_steps=[{"prefect.deployments.steps.set_working_directory": {"directory": str(source)}}],
        )
        run = await client.create_flow_run_from_deployment(deployment_id, parameters=dict(parameters or {}))
        await client.set_flow_run_state(run.id, Pending())
    order = desk.order(command="", **fields)
    return dataclasses.replace(
        order,
        key=GangKey(str(run.id), 1),
        command=None,
        env={**order.env, **server.environment, "MINE": "yes"},
    )


async def state_of(order: LaunchOrder) -> tuple[str, str]:
    async with get_client() as client:
        state = (await client.read_flow_run(UUID(order.key.run_id))).state
    assert state is not None
    return state.type.value, state.name


async def test_a_deployed_flow_runs_unchanged_and_starts_in_a_fraction_of_a_second(
    desk: Desk, prefect_server: PrefectServer
) -> None:
    latencies, ends = [], []
    for number in range(4):
        order = await deployed_order(desk, prefect_server, "hello", {"name": f"run {number}"})
        launched = time.time()
        await desk.cluster.launch(order)
        text = await desk.said(order.key, f"hello run {number}")
        first = next(float(line.split()[1]) for line in text.splitlines() if line.startswith("at "))
        latencies.append(first - launched)
        gone = await desk.gone(order.key)
        ends.append(gone.at - first)
        assert gone.flow_exit == 0
        assert await state_of(order) == ("COMPLETED", "Completed")
    assert "logged by hello" in await logs_of(order)
    print("launch → first line:", [f"{s:.3f}" for s in latencies], "first line → gone:", [f"{s:.3f}" for s in ends])
    assert min(latencies) < 1.5


async def test_async_flows_run_too(desk: Desk, prefect_server: PrefectServer) -> None:
    order = await deployed_order(desk, prefect_server, "ahello", {"name": "there"})
    assert (await desk.run(order)).flow_exit == 0
    assert "ahello there" in desk.log(order.key)
    assert await state_of(order) == ("COMPLETED", "Completed")


@pytest.mark.parametrize(("function", "starts"), [("mirror", 1), ("amirror", 2)])
async def test_a_flow_sees_its_run_as_the_server_has_it(
    desk: Desk, prefect_server: PrefectServer, function: str, starts: int
) -> None:
    order = await deployed_order(desk, prefect_server, function)
    order = dataclasses.replace(order, env={**order.env, ENV_INFRASTRUCTURE: f"dsec:pool:{order.key.run_id}:1"})
    await desk.run(order)
    assert await state_of(order) == ("COMPLETED", "Completed")
    assert desk.log(order.key).count("differs: {}") == starts


async def test_the_deployment_that_the_worker_hands_over_is_the_one_that_the_engine_would_read(
    prefect_server: PrefectServer, desk: Desk
) -> None:
    await deployed_order(desk, prefect_server, "hello")
    async with get_client() as client:
        deployment = (await client.read_deployments(limit=1))[0]
        listed = (await PrefectApi(client).deployments([str(deployment.id)]))[str(deployment.id)].raw
        assert DeploymentResponse.model_validate(listed) == await client.read_deployment(deployment.id)


async def test_a_run_that_is_suspended_from_outside_in_its_first_second_stops_at_a_task(
    desk: Desk, prefect_server: PrefectServer
) -> None:
    order = await deployed_order(desk, prefect_server, "stepping")
    await desk.cluster.launch(order)
    await desk.said(order.key, "stepping")
    async with get_client() as client:
        await client.set_flow_run_state(UUID(order.key.run_id), Suspended(timeout_seconds=600))
    await desk.gone(order.key)
    assert await state_of(order) == ("PAUSED", "Suspended")


async def test_a_pull_step_is_announced_as_prefect_announces_it(desk: Desk, prefect_server: PrefectServer) -> None:
    order = await deployed_order(desk, prefect_server, "hello")
    await desk.run(order)
    wanted = {
        "event": {"name": ["prefect.flow-run.pull-step.executed"]},
        "resource": {"id": [f"prefect.flow-run.{order.key.run_id}"]},
    }
    give_up = time.monotonic() + 60
    async with get_client() as client:
        while not (found := (await client._client.post("/events/filter", json={"filter": wanted})).json()["events"]):
            assert time.monotonic() < give_up
            await asyncio.sleep(0.2)
    steps = [event["payload"]["qualified_name"] for event in found]
    assert steps == ["prefect.deployments.steps.set_working_directory"]


async def logs_of(order: LaunchOrder) -> list[str]:
    async with get_client() as client:
        wanted = LogFilter(flow_run_id=LogFilterFlowRunId(any_=[UUID(order.key.run_id)]))
        return [log.message for log in await client.read_logs(wanted, sort=LogSort.TIMESTAMP_ASC)]


async def test_what_a_run_logs_in_its_first_second_is_there_while_it_runs_and_after_its_eviction(
    desk: Desk, prefect_server: PrefectServer
) -> None:
    order = await deployed_order(desk, prefect_server, "talking")
    await desk.cluster.launch(order)
    await desk.said(order.key, "talking")
    async with asyncio.timeout(30):
        while "still here" not in await logs_of(order):  # noqa: ASYNC110
            await asyncio.sleep(0.2)
    assert await state_of(order) == ("RUNNING", "Running")
    await desk.cluster.notify(order.key, notice(0.2, NoticeKind.EVICT))
    await desk.gone(order.key)
    assert (await logs_of(order)).count("still here") == 1


async def test_a_run_that_is_evicted_in_its_first_second_has_logged_what_it_said(
    desk: Desk, prefect_server: PrefectServer
) -> None:
    order = await deployed_order(desk, prefect_server, "talking")
    await desk.cluster.launch(order)
    await desk.said(order.key, "talking")
    await desk.cluster.notify(order.key, notice(0.1, NoticeKind.EVICT))
    await desk.gone(order.key)
    assert (await logs_of(order)).count("still here") == 1


async def test_settings_and_directory_are_the_orders(desk: Desk, prefect_server: PrefectServer) -> None:
    order = await deployed_order(desk, prefect_server, "environment")
    await desk.run(order)
    source = desk.scripts / "source"
    assert f"{prefect_server.api_url} yes {source} " in desk.log(order.key)


async def test_a_failing_flow_is_failed_by_the_engine_itself(desk: Desk, prefect_server: PrefectServer) -> None:
    order = await deployed_order(desk, prefect_server, "failing")
    await desk.run(order)
    assert await state_of(order) == ("FAILED", "Failed")


async def test_user_code_is_not_even_imported_before_the_barrier(desk: Desk, prefect_server: PrefectServer) -> None:
    holder = desk.order(command="sleep 60", devices=[["engine-0"]])
    await desk.cluster.launch(holder)
    await desk.until(holder.key, Started)
    order = await deployed_order(desk, prefect_server, "hello", devices=[["engine-0"]], hold_start=True)
    await desk.cluster.launch(order)
    await asyncio.sleep(1.5)
    assert "imported" not in desk.log(order.key)
    freed = time.time()
    await desk.cluster.stop(holder.key, 0.0)
    text = await desk.said(order.key, "hello world")
    first = next(float(line.split()[1]) for line in text.splitlines() if line.startswith("at "))
    print(f"device freed → first line of the flow: {first - freed:.3f} s")
    await desk.gone(order.key)


@pytest.mark.parametrize("kind", [NoticeKind.EVICT, NoticeKind.DRAIN])
async def test_an_evicted_run_that_has_to_be_terminated_keeps_its_state_and_runs_no_hook(
    desk: Desk, prefect_server: PrefectServer, kind: NoticeKind
) -> None:
    order = await deployed_order(desk, prefect_server, "sleeping")
    await desk.cluster.launch(order)
    await desk.said(order.key, "sleeping")
    await desk.cluster.notify(order.key, notice(0.2, kind))
    gone = await desk.gone(order.key)
    assert gone.flow_exit == 0 and gone.notice == kind.value
    assert await state_of(order) == ("RUNNING", "Running")
    assert "hook" not in desk.log(order.key)


async def test_a_cancelled_run_goes_through_prefects_own_cancellation(
    desk: Desk, prefect_server: PrefectServer
) -> None:
    order = await deployed_order(desk, prefect_server, "sleeping")
    await desk.cluster.launch(order)
    await desk.said(order.key, "sleeping")
    await desk.cluster.notify(order.key, notice(0.2, NoticeKind.CANCEL))
    gone = await desk.gone(order.key)
    assert gone.notice == "cancel"
    assert await state_of(order) == ("CANCELLED", "Cancelled")
    assert "cancelled hook" in desk.log(order.key)


@pytest.mark.parametrize("function", ["evicted", "aevicted"])
async def test_evicted_raised_by_user_code_leaves_the_state_to_the_worker(
    desk: Desk, prefect_server: PrefectServer, function: str
) -> None:
    order = await deployed_order(desk, prefect_server, function)
    gone = await desk.run(order)
    assert gone.flow_exit == 0
    assert await state_of(order) == ("RUNNING", "Running")


async def test_a_server_that_is_not_there_fails_the_launch_before_the_barrier_or_the_flow(
    desk: Desk, prefect_server: PrefectServer, tmp_path: Path
) -> None:
    order = await deployed_order(desk, prefect_server, "hello")
    env = {**order.env, "PREFECT_API_URL": "http://127.0.0.1:9/api", "PREFECT_CLIENT_MAX_RETRIES": "0"}
    order = dataclasses.replace(order, env=env)
    gone = await desk.run(order)
    assert gone.flow_exit != 0
    assert "imported" not in desk.log(order.key)
