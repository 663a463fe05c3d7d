"""Cancel at any moment of a run's life; a cancelled run stays cancelled."""

import asyncio
import signal
import threading
import time
from pathlib import Path
from types import SimpleNamespace

import pytest
from prefect.exceptions import InfrastructureNotFound

from dsec_blocks.gateways.clock import SystemClock
from dsec_blocks.model.gangs import GangState
from dsec_workers.clusters.local import LocalCluster
from dsec_workers.form import GangJobConfiguration
from dsec_workers.gang_worker import GangWorker
from tests.fixtures.pausing import pause
from tests.integration.site import Site

pytestmark = pytest.mark.slow


def test_cancel_works_while_waiting_while_running_and_while_evicting_21616_19593(site: Site) -> None:
    """Issues 21616, 21863: cancelling a started run never kills its pods; 19593, 18840: stuck in Cancelling."""
    notes = site.home / "notes"
    site.start_worker()
    running = site.submit(
        "sleeper", parameters={"where": str(notes), "seconds": 60}, nodes=2, devices_per_node=4, grace=1
    )
    site.wait_gang(running, GangState.RUNNING)
    site.wait("its user code", notes.exists)
    waiting = site.submit("hello", devices_per_node=4)
    site.wait_state(waiting, "AwaitingGPUs")

    site.set_state(waiting, "CANCELLING")
    assert site.wait_state(waiting, "CANCELLED", seconds=10)
    assert site.wait_gang(waiting, GangState.ENDED)

    pid = int(notes.read_text().split()[2])
    assert Path(f"/proc/{pid}").exists()
    site.set_state(running, "CANCELLING")
    site.wait_state(running, "CANCELLED", seconds=11)
    assert not Path(f"/proc/{pid}").exists()
    site.wait_gang(running, GangState.ENDED)

    victim = site.submit("sleeper", parameters={"where": str(notes), "seconds": 60}, nodes=2, devices_per_node=4,
                         grace=3)  # fmt: skip
    site.wait_gang(victim, GangState.RUNNING)
    site.commit(victim)
    urgent = site.submit("hello", nodes=2, devices_per_node=4, priority=50)
    site.wait_gang(victim, GangState.EVICTING)
    site.set_state(victim, "CANCELLING")
    site.wait_state(victim, "CANCELLED", seconds=15)
    site.wait_state(urgent, "COMPLETED")
    time.sleep(1.5)
    assert site.state(victim)[0] == "CANCELLED"
    assert site.wait_gang(victim, GangState.ENDED)


def test_a_run_forced_to_cancelled_is_stopped_too_21863(site: Site) -> None:
    """Issue 21863: PENDING to CANCELLED by force or by a parent never emits Cancelling, so nobody kills."""
    notes = site.home / "notes"
    site.start_worker()
    run = site.submit("sleeper", parameters={"where": str(notes), "seconds": 60}, devices_per_node=1, grace=1)
    site.wait_gang(run, GangState.RUNNING)
    site.wait("its user code", notes.exists)
    site.set_state(run, "CANCELLED", force=True)
    site.wait_gang(run, GangState.ENDED, seconds=15)
    assert site.state(run)[0] == "CANCELLED"
    assert site.ledger.holders(site.pool) == []


def test_a_cancel_while_the_reason_is_being_written_stays_cancelled(site: Site) -> None:
    """Twelve runs are cancelled at moments spread over the writing of their first reason."""
    site.start_worker()
    warm = site.submit("hello")
    site.wait_state(warm, "COMPLETED")
    runs, cancels = [], []
    for number in range(12):
        run = site.submit("hello", nodes=3, devices_per_node=4)
        cancel = threading.Timer(0.03 * number, site.set_state, (run, "CANCELLING"))
        cancel.start()
        runs.append(run)
        cancels.append(cancel)
    for cancel in cancels:
        cancel.join()
    for run in runs:
        site.wait_state(run, "CANCELLED", seconds=20)
    time.sleep(4)
    assert {site.state(run)[0] for run in runs} == {"CANCELLED"}
    assert all(site.wait_gang(run, GangState.ENDED) for run in runs if site.gang(run) is not None)


def test_a_waiting_run_with_an_infrastructure_id_of_old_does_not_stay_cancelling(site: Site) -> None:
    """The server leaves it to a worker, since something might run: it hangs in Cancelling."""
    site.start_worker()
    run = site.submit("hello", nodes=3, devices_per_node=4)
    site.wait_state(run, "AwaitingGPUs")
    site.http.patch(f"flow_runs/{run}", json={"infrastructure_pid": "gone:1"}).raise_for_status()
    site.set_state(run, "CANCELLING")
    site.wait_state(run, "CANCELLED", seconds=10)


def test_children_of_a_cancelled_parent_end_whether_they_run_or_wait_15399(site: Site) -> None:
    """Issue 15399: children of a cancelled parent are stuck in Cancelling."""
    notes = site.home / "notes"
    site.nodes = 1
    site.start_worker()
    runs = {"deployment": site.deployment("sleeper", devices_per_node=1, grace=1)}
    waits = {"deployment": site.deployment("hello", devices_per_node=2)}
    first = site.submit("calls", parameters={**runs, "parameters": {"where": str(notes)}}, devices_per_node=1, grace=1)
    second = site.submit("calls", parameters={**waits, "parameters": {}}, devices_per_node=2, grace=1)

    def child_of(parent: str) -> str | None:
        return next((gang.run_id for gang in site.ledger.gangs(site.pool) if gang.parent_run_id == parent), None)

    running, waiting = (site.wait("the child", lambda parent=parent: child_of(parent)) for parent in (first, second))
    message = site.wait_state(waiting, "AwaitingGPUs")[2]
    assert f"held by run {second}, which waits for this run" in message
    site.wait("its user code", notes.exists)
    process = Path(f"/proc/{notes.read_text().split()[2]}")
    assert process.exists()
    for parent in (first, second):
        site.set_state(parent, "CANCELLING")
    for run in (first, second, running, waiting):
        site.wait_state(run, "CANCELLED")
        site.wait_gang(run, GangState.ENDED)
    assert not process.exists()
    assert site.ledger.holders(site.pool) == []


def test_a_run_cancelled_while_no_worker_lives_is_stopped_by_the_next_19593(site: Site) -> None:
    """Issues 19593, 18840, 17563, 16001: the worker is dead, the run stays Cancelling and keeps its slot."""
    notes = site.home / "notes"
    worker = site.start_worker()
    run = site.submit("sleeper", parameters={"where": str(notes)}, nodes=2, devices_per_node=4, grace=1)
    site.wait_gang(run, GangState.RUNNING)
    site.wait("its user code", notes.exists)
    waiting = site.submit("hello", devices_per_node=1)
    site.wait_state(waiting, "AwaitingGPUs")
    site.stop_worker(worker, signal.SIGKILL)
    for cancelled in (run, waiting):
        site.set_state(cancelled, "CANCELLING")
    process = Path(f"/proc/{notes.read_text().split()[2]}")
    assert process.exists()
    assert site.state(run)[0] == "CANCELLING"
    site.start_worker()
    after = site.submit("hello", nodes=2, devices_per_node=4)
    for cancelled in (run, waiting):
        site.wait_state(cancelled, "CANCELLED")
        site.wait_gang(cancelled, GangState.ENDED)
    assert not process.exists()
    site.wait_state(after, "COMPLETED")


def test_a_gang_is_killed_by_its_infrastructure_id_though_its_worker_hangs(site: Site) -> None:
    """What the server asks of a worker of the pool when a cancellation has timed out."""
    notes = site.home / "notes"
    leader = site.start_worker(DSEC_LEASE_TTL="60")
    run = site.submit("sleeper", parameters={"where": str(notes), "seconds": 60}, devices_per_node=2, grace=1)
    site.wait_gang(run, GangState.RUNNING)
    site.wait("its user code", notes.exists)
    infrastructure = site.run(run)["infrastructure_pid"]
    pause(leader.pid, site.ledger_url)  # before it can hear of the cancellation, and act
    site.set_state(run, "CANCELLED", force=True)
    process = Path(f"/proc/{notes.read_text().split()[2]}")
    assert process.exists()
    asyncio.run(_kill(site, infrastructure))
    site.wait("its process to be gone", lambda: not process.exists(), 10)
    leader.send_signal(signal.SIGCONT)
    site.wait_gang(run, GangState.ENDED)
    assert site.state(run)[0] == "CANCELLED"
    with pytest.raises(InfrastructureNotFound, match=r"attempt 1 of run .* is over"):
        asyncio.run(_kill(site, infrastructure))
    with pytest.raises(InfrastructureNotFound, match="is not a gang of pool"):
        asyncio.run(_kill(site, "12345"))


async def _kill(site: Site, infrastructure: str) -> None:
    """As Prefect's clean-up handler calls it, on another worker of the same machine."""
    worker = GangWorker(work_pool_name=site.pool)
    cluster = LocalCluster(home=site.home, nodes=(), clock=SystemClock())
    worker.leading = SimpleNamespace(ledger=site.ledger, cluster=cluster)  # type: ignore[assignment]
    await worker.kill_infrastructure(infrastructure, GangJobConfiguration(), grace_seconds=30)
