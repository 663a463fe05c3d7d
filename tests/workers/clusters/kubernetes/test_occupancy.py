"""What pods take on a node; the same sums as kube-scheduler's."""

from typing import Any

import pytest

from dsec_workers.clusters.kubernetes.occupancy import node_of, pod_requests, taken_by_node

GPU = "nvidia.com/gpu"


def container(gpus: int = 0, cpu: str | None = None, **more: Any) -> dict[str, Any]:
    amounts = {**({GPU: str(gpus)} if gpus else {}), **({"cpu": cpu} if cpu else {})}
    return {"name": "c", "resources": {"requests": amounts}, **more}


def pod(*containers: dict[str, Any], node: str | None = "n1", phase: str = "Running", **more: Any) -> dict[str, Any]:
    spec = {"containers": list(containers), **more.pop("spec", {})}
    if node:
        spec["nodeName"] = node
    return {"metadata": {"name": "p", **more}, "spec": spec, "status": {"phase": phase}}


def spec(*containers: dict[str, Any], before: tuple[dict[str, Any], ...] = (), **more: Any) -> dict[str, Any]:
    return {"containers": list(containers), "initContainers": list(before), **more}


def sidecar(gpus: int) -> dict[str, Any]:
    return container(gpus, restartPolicy="Always")


ONLY_LIMITS = {"name": "c", "resources": {"limits": {GPU: "2"}}}


@pytest.mark.parametrize(
    ("why", "spec", "gpus"),
    [
        ("containers run together", spec(container(1), container(2)), 3),
        ("init containers run before, alone", spec(container(1), before=(container(4), container(2))), 4),
        ("a small init container adds nothing", spec(container(3), before=(container(1),)), 3),
        ("a sidecar runs beside the containers", spec(container(1), before=(sidecar(1),)), 2),
        ("a sidecar runs beside later init containers", spec(container(1), before=(sidecar(1), container(4))), 5),
        ("an init container before the sidecar is alone", spec(container(1), before=(container(4), sidecar(1))), 4),
        ("a limit alone is a request", spec(ONLY_LIMITS), 2),
        ("overhead is added", spec(container(1), overhead={GPU: "1"}), 2),
        ("nothing asked is nothing taken", spec(container()), 0),
    ],
)
def test_a_pods_requests(why: str, spec: dict[str, Any], gpus: int) -> None:
    assert pod_requests({"metadata": {}, "spec": spec}).get(GPU, 0) == gpus, why


def test_pod_level_requests_stand_for_all_containers() -> None:
    found = pod_requests(pod(container(2, cpu="4"), spec={"resources": {"requests": {"cpu": "6"}}}))
    assert (found["cpu"], found[GPU]) == (6, 2)


def test_a_terminating_pod_counts_until_its_containers_have_stopped() -> None:
    leaving = pod(container(2), deletionTimestamp="2026-01-01T00:00:00Z")
    assert taken_by_node([leaving])["n1"][GPU] == 2
    stopped = pod(container(2), deletionTimestamp="2026-01-01T00:00:00Z", phase="Failed")
    assert taken_by_node([stopped]) == {}


@pytest.mark.parametrize("phase", ["Succeeded", "Failed"])
def test_a_finished_pod_that_a_finalizer_holds_takes_nothing(phase: str) -> None:
    assert taken_by_node([pod(container(8), phase=phase, finalizers=["example.com/keep"])]) == {}


def test_a_pod_that_waits_for_its_victims_counts_where_it_is_nominated() -> None:
    nominated = pod(container(4), node=None, phase="Pending")
    nominated["status"]["nominatedNodeName"] = "n2"
    assert node_of(nominated) == "n2"
    assert taken_by_node([nominated, pod(container(1))])["n2"][GPU] == 4


def test_a_pod_without_a_node_takes_nothing_anywhere() -> None:
    assert taken_by_node([pod(container(4), node=None, phase="Pending")]) == {}
