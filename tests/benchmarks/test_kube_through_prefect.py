"""The Kubernetes benchmark through a real Prefect server, small; and its parts that need none."""

import json
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from benchmarks import kube
from benchmarks.kube_parts import RESUMABLE, Key, Parts
from benchmarks.kube_pods_played import IN_NAME, RUNS_FOR, PlayedCluster
from benchmarks.kube_shapes import KUEUE, OURS, PLAIN, PREFECT, SYSTEMS, for_system, mixed, scenarios
from benchmarks.kube_through_prefect import STAGES, template, variables_of, where
from benchmarks.kube_timed import Timed
from dsec_blocks.model.requests import parse_request
from dsec_deployments.control_plane.plane import ControlPlane
from dsec_workers.clusters.kubernetes.gang_view import GangView
from dsec_workers.clusters.protocol import ClusterEvent, DevicesReleased, GangKey
from dsec_workers.form import GangJobConfiguration

KEY: Key = (1.0, "postgres", "jobs4000", OURS)


@pytest.mark.long
@pytest.mark.timeout(900)
@pytest.mark.parametrize("letter", ["a", "c2", "d"])
async def test_flow_runs_reach_their_pods_through_a_real_prefect_and_it_is_said_where_the_time_went(
    kubernetes: ControlPlane, letter: str
) -> None:
    options = kube.Options(patience_seconds=300.0, ledger="postgres")
    scenario, said = scenarios(0.05)[letter], list[str]()
    row = await kube.measure(scenario, PREFECT, options, lambda what, done, total: said.append(f"{what} {done}"))
    assert row["wall_s"] > 0, row
    assert row["overcommitted_nodes"] == 0
    assert all(f"{stage} " in row["through_s"] for stage in ("created", *STAGES))
    gangs = sum(batch.gangs for batch in for_system(scenario, PREFECT).batches)
    assert row["profile"]["calls"]["prefect.claim_pending"] >= gangs
    assert row["profile"]["seconds"]["plan"] > 0


def test_through_prefect_the_long_load_is_its_first_tenth_and_the_others_are_whole() -> None:
    loads = scenarios()
    assert for_system(loads["a"], PREFECT) is loads["a"]
    part = for_system(loads["d"], PREFECT)
    assert (part.name, len(mixed(part.batches)), part.quotas) == ("baseline1500", 1500, loads["d"].quotas)
    assert for_system(loads["d"], OURS) is loads["d"]


def test_all_that_is_compared_is_measured_before_anything_goes_through_prefect() -> None:
    order = kube.order_of(list(scenarios().values()), list(SYSTEMS))
    systems = [system for _, system in order]
    assert systems == [*[each for each in systems if each != PREFECT], *[PREFECT] * 5]
    assert [system for scenario, system in order if scenario.letter == "a"] == [PLAIN, KUEUE, OURS, PREFECT]
    assert kube.order_of([scenarios()["c1"]], [PLAIN, PREFECT]) == [(scenarios()["c1"], PREFECT)]


def test_the_newest_row_of_the_same_measurement_is_taken_up_again_and_one_that_failed_is_not(tmp_path: Path) -> None:
    parts = Parts(tmp_path / "results" / "parts.jsonl")
    assert parts.fresh([KEY]) == {}
    other: Key = (0.1, "postgres", "jobs4000", OURS)
    for key, row in (
        (KEY, {"wall_s": 2.0}), (KEY, {"wall_s": 1.0}), (other, {"wall_s": 9.0}),
        (KEY, {"wall_s": None, "note": "it broke", "failed": True}),
    ):  # fmt: skip
        parts.keep(key, row)
    assert parts.fresh([KEY]) == {KEY: {"wall_s": 1.0}}
    given_up: Key = (1.0, "postgres", "reclaim2000", KUEUE)
    parts.keep(given_up, {"wall_s": None, "note": "22 of 25 pods were running within 900 s"})
    assert parts.fresh([given_up])[given_up]["wall_s"] is None, "what was given up would be given up again"


def test_old_rows_and_a_line_that_was_cut_short_are_measured_again(tmp_path: Path) -> None:
    parts = Parts(tmp_path / "parts.jsonl")
    old = (datetime.now(UTC) - RESUMABLE - timedelta(minutes=1)).isoformat()
    told = json.dumps({"key": list(KEY), "at": old, "row": {"wall_s": 1.0}})
    parts.path.write_text(f"{told}\n{told[:20]}\n")
    assert parts.fresh([KEY]) == {}


def test_where_the_time_goes_is_when_each_stage_was_through_and_seconds_by_kind() -> None:
    seconds = {"ledger.gang": 1.0, "ledger.news": 2.0, "prefect.claim_pending": 30.0, "plan": 0.5, "step.poll": 4.0}
    last = {
        "ledger.enqueue": 103.0,
        "ledger.admit_all": 104.0,
        "prefect.claim_pending": 160.0,
        "kubernetes.create": 161.0,
    }
    found = where({"seconds": seconds, "last": last, "created": 140.0}, began=100.0)
    assert found["through_s"] == "created 40.0 taken in 3.0 admitted 4.0 claimed 60.0 launched 61.0"
    assert found["spent_s"] == "intake 4.0 claims 30.0 other Prefect 0.0 plan 0.5 ledger 3.0 API server 0.0"


@pytest.mark.parametrize("letter", ["b", "d"])
async def test_job_variables_ask_for_what_the_gang_would_and_tell_the_nodes_how_long_it_runs(
    letter: str,
) -> None:
    for batch in scenarios()[letter].batches:
        found: Any = await GangJobConfiguration.from_template_and_values(
            base_job_template=template(),
            values=variables_of(batch),
            client=object(),  # nothing is referred to
        )
        request = parse_request(found.request_variables)
        wanted = (batch.members, batch.gpus, batch.priority, 0.0)
        assert (request.nodes, request.devices_per_node, request.priority, request.grace_seconds) == wanted
        annotations = found.job_manifest["spec"]["template"]["metadata"].get("annotations") or {}
        milliseconds = None if batch.run_seconds is None else f"{batch.run_seconds * 1000:.0f}"
        assert annotations.get(RUNS_FOR) == milliseconds


@pytest.mark.parametrize(("exit_code", "is_completed"), [(0, True), (1, False), (None, False)])
async def test_a_run_is_completed_before_its_end_is_told_and_only_if_its_pods_ended_well(
    exit_code: int | None, is_completed: bool
) -> None:
    order: list[str] = []

    async def complete(run_id: str) -> None:
        order.append(f"completed {run_id}")

    async def tell(event: ClusterEvent) -> None:
        order.append(type(event).__name__)

    ended = {} if exit_code is None else {"terminated": {"exitCode": exit_code}}
    pod = {
        "metadata": {"name": "p", "namespace": "bench"}, "spec": {"nodeName": "n1", "containers": [{"name": "gang"}]},
        "status": {"phase": "Running", "containerStatuses": [{"name": "gang", "state": ended}]},
    }  # fmt: skip
    view = GangView(
        key=GangKey("run", 1), namespace="bench", members={}, count=1, created_at=0.0, start_timeout_seconds=1.0,
        grace_seconds=0.0,
    )  # fmt: skip
    view.see(0, pod, before=None)
    cluster = PlayedCluster.__new__(PlayedCluster)
    cluster._complete = complete
    await cluster._tell(view, tell, DevicesReleased(key=view.key, at=1.0))
    assert order == [*(["completed run"] if is_completed else []), "DevicesReleased"]
    assert IN_NAME.has_outposts is False


async def test_what_is_timed_is_counted_also_when_it_fails() -> None:
    timed = Timed()

    async def fails() -> None:
        raise OSError("away")

    for _ in range(2):
        with pytest.raises(OSError, match="away"):
            await timed.wrap_async("it", fails)()
    assert timed.wrap("sum", sum)([1, 2]) == 3
    assert timed.calls == {"it": 2, "sum": 1}
    assert set(timed.told()["last"]) == {"it", "sum"}
