"""The rules a kubelet follows, one table each: what a reference, a path, a request, a status means."""

import asyncio
from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.fakes.kubelet import fields
from tests.fakes.kubelet.admission import refusal
from tests.fakes.kubelet.devices import Devices, OutOfDevices
from tests.fakes.kubelet.expansion import expand
from tests.fakes.kubelet.mounts import IMAGE, replace_paths
from tests.fakes.kubelet.reporting import Reporter
from tests.fakes.kubelet.status import Conditions, ContainerState, phase, terminated


@pytest.mark.parametrize(
    ("text", "meaning"),
    [
        ("$(A)", "1"),
        ("x$(A)y$(B)", "x1y2"),
        ("$(NOBODY)", "$(NOBODY)"),
        ("$$(A)", "$(A)"),
        ("$$$(A)", "$1"),
        ("$$$$", "$$"),
        ("$A ${A}", "$A ${A}"),
        ("$(A", "$(A"),
    ],
)
def test_references_are_replaced_where_they_are_known(text: str, meaning: str) -> None:
    assert expand(text, {"A": "1", "B": "2"}) == meaning


@pytest.mark.parametrize(
    ("text", "meaning"),
    [
        ("/data", "/local/d"),
        ("/data/", "/local/d/"),
        ("/data/x.bin", "/local/d/x.bin"),
        ("--path=/data:/data/sub/x", "--path=/local/d:/local/s/x"),
        ('{"p": "/data"}', '{"p": "/local/d"}'),
        ("/database", "/database"),
        ("/data.old", "/data.old"),
        ("/srv/data", "/srv/data"),
        ("s3://bucket/data", "s3://bucket/data"),
    ],
)
def test_mount_paths_are_replaced_as_paths_only(text: str, meaning: str) -> None:
    assert replace_paths(text, {"/data": "/local/d", "/data/sub": "/local/s"}) == meaning


def test_the_image_stays_where_it_is_below_a_path_that_is_mounted() -> None:
    python, source = IMAGE
    parent = str(Path(source).parent)
    text = f"{python}/bin/python {source}:{source}/flows {parent}/other"
    mounts = {parent: "/local", str(Path(python).parent): "/local"}
    assert replace_paths(text, mounts) == f"{python}/bin/python {source}:{source}/flows /local/other"


def test_labels_are_written_as_the_downward_api_writes_them() -> None:
    pod = {"metadata": {"labels": {"b": 'say "x"\n', "a": "1"}, "name": "p", "namespace": "n", "uid": "u"}, "spec": {}}
    found = fields.field("metadata.labels", pod, pod_ip="127.0.0.2", host_ip="127.0.0.1")
    assert found == 'a="1"\nb="say \\"x\\"\\n"'
    with pytest.raises(KeyError):
        fields.field("spec.containers", pod, pod_ip="", host_ip="")


@pytest.mark.parametrize(
    ("reference", "value"),
    [
        ({"resource": "limits.cpu"}, "2"),
        ({"resource": "limits.cpu", "divisor": "1m"}, "1500"),
        ({"resource": "requests.memory"}, "0"),
        ({"resource": "limits.memory", "divisor": "1Mi"}, str(16 * 1024)),
    ],
)
def test_resources_are_rounded_up_to_their_divisor(reference: dict[str, str], value: str) -> None:
    container = {"resources": {"limits": {"cpu": "1500m"}}}
    assert fields.resource(reference, container, {"memory": "16Gi"}) == value


def a_pod(*containers: int, inits: tuple[int, ...] = (), sidecars: tuple[int, ...] = (), uid: str = "u") -> Any:
    def with_gpus(name: str, count: int, **more: str) -> dict[str, Any]:
        return {"name": name, "resources": {"limits": {"nvidia.com/gpu": str(count)}} if count else {}, **more}

    return {
        "metadata": {"uid": uid},
        "spec": {
            "containers": [with_gpus(f"c{n}", count) for n, count in enumerate(containers)],
            "initContainers": [
                *(with_gpus(f"i{n}", count) for n, count in enumerate(inits)),
                *(with_gpus(f"s{n}", count, restartPolicy="Always") for n, count in enumerate(sidecars)),
            ],
        },
    }


@pytest.mark.parametrize(
    ("pod", "held"),
    [
        (a_pod(2), 2),
        (a_pod(1, 2), 3),
        (a_pod(2, inits=(3,)), 3),
        (a_pod(3, inits=(2, 1)), 3),
        (a_pod(1, sidecars=(1,)), 2),
        (a_pod(0), 0),
    ],
)
def test_a_pod_holds_what_it_may_use_at_once(pod: Any, held: int) -> None:
    devices = Devices({"nvidia.com/gpu": [f"GPU-{n}" for n in range(4)]})
    devices.allocate(pod)
    assert len(devices.in_use("nvidia.com/gpu")) == held
    devices.free("u")
    assert not devices.in_use("nvidia.com/gpu")


def test_no_device_is_given_twice_and_none_in_order() -> None:
    devices = Devices({"nvidia.com/gpu": ["GPU-0", "GPU-1", "GPU-2"]})
    devices.allocate(a_pod(2, uid="a"))
    assert devices.of("a", "c0") == ("GPU-2", "GPU-1")
    with pytest.raises(OutOfDevices, match="requested 2, used 2 of 3"):
        devices.allocate(a_pod(2, uid="b"))
    devices.allocate(a_pod(1, uid="c"))
    assert devices.of("c", "c0") == ("GPU-0",)


def affinity(operator: str, *values: str, key: str = "rack", kind: str = "matchExpressions") -> Any:
    term = {kind: [{"key": key, "operator": operator, "values": list(values)}]}
    required = {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [term]}}
    return {"affinity": {"nodeAffinity": required}}


@pytest.mark.parametrize(
    ("spec", "reason"),
    [
        ({}, None),
        ({"nodeSelector": {"rack": "r1"}}, None),
        ({"nodeSelector": {"rack": "r2"}}, "NodeAffinity"),
        (affinity("In", "r1", "r2"), None),
        (affinity("NotIn", "r1"), "NodeAffinity"),
        (affinity("Exists"), None),
        (affinity("DoesNotExist"), "NodeAffinity"),
        (affinity("Gt", "6", key="number"), None),
        (affinity("Lt", "6", key="number"), "NodeAffinity"),
        (affinity("In", "n1", key="metadata.name", kind="matchFields"), None),
        (affinity("In", "n2", key="metadata.name", kind="matchFields"), "NodeAffinity"),
    ],
)
def test_a_node_takes_only_pods_that_are_for_it(spec: Any, reason: str | None) -> None:
    node = {
        "metadata": {"name": "n1", "labels": {"rack": "r1", "number": "7"}},
        "spec": {"taints": [{"key": "a", "effect": "NoSchedule"}]},
        "status": {"allocatable": {"cpu": "4", "memory": "8Gi", "pods": "2"}},
    }
    found = refusal({"spec": {"containers": [{"name": "c"}], **spec}}, node, [])
    assert (found and found.reason) == reason


@pytest.mark.parametrize(
    ("others", "requests", "reason"),
    [
        (0, {"example.com/unheard-of": "4"}, None),
        (0, {"cpu": "4"}, None),
        (1, {"cpu": "3"}, "OutOfcpu"),
        (1, {"memory": "8Gi"}, "OutOfmemory"),
        (2, {}, "OutOfpods"),
    ],
)
def test_a_node_takes_only_what_it_has_room_for(others: int, requests: Any, reason: str | None) -> None:
    node = {
        "metadata": {"name": "n1"},
        "spec": {},
        "status": {"allocatable": {"cpu": "4", "memory": "8Gi", "pods": "2"}},
    }
    small = {"cpu": "2", "memory": "1Gi"}
    there = [{"spec": {"containers": [{"name": "c", "resources": {"requests": small}}]}}] * others
    found = refusal({"spec": {"containers": [{"name": "c", "resources": {"requests": requests}}]}}, node, there)
    assert (found and found.reason) == reason


@pytest.mark.parametrize(
    ("toleration", "reason"),
    [
        ([], "TaintToleration"),
        ([{"key": "a", "operator": "Exists"}], None),
        ([{"key": "a", "value": "1", "effect": "NoExecute"}], None),
        ([{"key": "a", "value": "2"}], "TaintToleration"),
        ([{"key": "a", "value": "1", "effect": "NoSchedule"}], "TaintToleration"),
        ([{"operator": "Exists"}], None),
    ],
)
def test_a_node_takes_only_pods_that_tolerate_what_drives_pods_away(toleration: Any, reason: str | None) -> None:
    node = {
        "metadata": {"name": "n1"},
        "spec": {"taints": [{"key": "a", "value": "1", "effect": "NoExecute"}]},
        "status": {"allocatable": {"cpu": "4", "memory": "8Gi", "pods": "2"}},
    }
    found = refusal({"spec": {"containers": [{"name": "c"}], "tolerations": toleration}}, node, [])
    assert (found and found.reason) == reason


def test_a_refusal_says_what_a_kubelet_says() -> None:
    node = {"metadata": {"name": "n1"}, "spec": {}, "status": {"allocatable": {"cpu": "4", "memory": "1", "pods": "2"}}}
    pod = {"spec": {"containers": [{"name": "c", "resources": {"requests": {"cpu": "4500m"}}}]}}
    found = refusal(pod, node, [])
    assert found is not None
    assert found.message == (
        "Pod was rejected: Node didn't have enough resource: cpu, requested: 4500, used: 0, capacity: 4000"
    )


RAN = {"started_at": "", "finished_at": "", "container_id": ""}


def state(kind: Any = "app", *, runs: bool = False, exit: int | None = None, last: bool = False) -> ContainerState:
    return ContainerState(
        name="c",
        image="i",
        kind=kind,
        running_since="now" if runs else None,
        is_started=runs,
        is_ready=runs,
        terminated=None if exit is None else terminated(status=exit, **RAN),
        last=terminated(status=1, **RAN) if last else None,
    )


@pytest.mark.parametrize(
    ("states", "is_over", "expected"),
    [
        ([state()], False, "Pending"),
        ([state("init", runs=True), state()], False, "Pending"),
        ([state("init", exit=0), state(runs=True)], False, "Running"),
        ([state("sidecar"), state()], False, "Pending"),
        ([state("sidecar", runs=True), state(runs=True)], False, "Running"),
        ([state(last=True)], False, "Running"),
        ([state(exit=0), state(runs=True)], False, "Running"),
        ([state(exit=0), state(exit=0)], True, "Succeeded"),
        ([state("sidecar", exit=-9), state(exit=0)], True, "Succeeded"),
        ([state(exit=0), state(exit=-15)], True, "Failed"),
        ([state("init", exit=1), state()], True, "Failed"),
    ],
)
def test_a_pod_s_phase_follows_from_its_containers(states: list[ContainerState], is_over: bool, expected: str) -> None:
    assert phase(states, is_over=is_over) == expected


def test_a_condition_remembers_since_when() -> None:
    conditions = Conditions()

    def ready(phase: str, runs: bool, now: str) -> tuple[str, str]:
        rows = conditions.of([state(runs=runs)], phase=phase, has_network=True, now=now)
        return next((row["status"], row["lastTransitionTime"]) for row in rows if row["type"] == "Ready")

    assert ready("Pending", False, "1") == ("False", "1")
    assert ready("Pending", False, "2") == ("False", "1")
    assert ready("Running", True, "3") == ("True", "3")
    assert ready("Running", True, "4") == ("True", "3")


async def test_an_older_status_does_not_arrive_after_the_last() -> None:
    """Before, nobody waited for its answer any more, and now and then a pod that had ended "ran" for ever."""
    there: list[str] = []

    async def apply(_path: str, body: Mapping[str, Any], **_more: str) -> None:
        async def arrive() -> None:  # whether or not anybody still waits for the answer
            await asyncio.sleep(0.05 if body["status"]["phase"] == "Running" else 0.0)
            there.append(body["status"]["phase"])

        await asyncio.shield(asyncio.ensure_future(arrive()))

    said = {"phase": "Running"}
    node: Any = SimpleNamespace(api=SimpleNamespace(apply=apply), until_heard=lambda: asyncio.sleep(0))
    pod = {"metadata": {"name": "p", "namespace": "n", "uid": "u"}}
    reporter = Reporter(node, pod, make=lambda: dict(said))
    running = asyncio.create_task(reporter.run())
    await asyncio.sleep(0.01)
    said["phase"] = "Failed"
    reporter.finish()
    await running
    assert there == ["Running", "Failed"]
