"""What pods' statuses mean, in the words that kubelets and controllers of Kubernetes 1.29 to 1.36 write into them."""

from typing import Any

import pytest

from dsec_workers.clusters.kubernetes.pod_fate import fate_of, is_rejection

READY = {"type": "PodReadyToStartContainers", "status": "True", "lastTransitionTime": "2026-03-01T10:00:00Z"}
AT_TEN = 1772359200.0
"""The time in `READY`, in seconds since the epoch."""
OURS = {"name": "gang", "env": [{"name": "DSEC_ORDER", "value": "{}"}]}
PROXY = {"name": "istio-proxy"}


def container(name: str = "gang", **state: Any) -> dict[str, Any]:
    return {"name": name, "state": state}


def waits(reason: str, message: str = "", *, name: str = "gang") -> dict[str, Any]:
    return container(name, waiting={"reason": reason, "message": message})


def ended(code: int, message: str = "", *, name: str = "gang") -> dict[str, Any]:
    return container(name, terminated={"exitCode": code, "message": message})


def runs(since: str = "2026-03-01T10:03:00Z", *, name: str = "gang") -> dict[str, Any]:
    return container(name, running={"startedAt": since})


def pod(*, is_deleted: bool = False, containers: Any = (OURS,), init: Any = (), **status: Any) -> dict[str, Any]:
    return {
        "metadata": {"name": "p", **({"deletionTimestamp": "2026-03-01T10:05:00Z"} if is_deleted else {})},
        "spec": {"nodeName": "n3", "containers": list(containers), "initContainers": list(init)},
        "status": status,
    }


def disruption(reason: str, message: str = "") -> list[dict[str, str]]:
    return [{"type": "DisruptionTarget", "status": "True", "reason": reason, "message": message}]


BY_THE_PLATFORM: dict[str, tuple[dict[str, Any], str, bool]] = {
    "a kubelet without the cards refuses it": (
        {"reason": "OutOfnvidia.com/gpu", "message": "Node didn't have enough resource: nvidia.com/gpu"},
        "OutOfnvidia.com/gpu: Node didn't have enough resource: nvidia.com/gpu",
        True,
    ),
    "a device plugin refuses it": (
        {"reason": "UnexpectedAdmissionError", "message": "Allocate failed due to no healthy devices present"},
        "UnexpectedAdmissionError: Allocate failed due to no healthy devices present",
        True,
    ),
    "its NUMA nodes do not fit": (
        {"reason": "TopologyAffinityError", "message": "Resources cannot be allocated with Topology locality"},
        "TopologyAffinityError: Resources cannot be allocated with Topology locality",
        True,
    ),
    "a node that shuts down refuses it": (
        {"reason": "NodeShutdown", "message": "Pod was rejected as the node is shutting down."},
        "NodeShutdown: Pod was rejected as the node is shutting down.",
        True,
    ),
    "a node that shuts down stops it": (
        {
            "reason": "Terminated",
            "message": "Pod was terminated in response to imminent node shutdown.",
            "conditions": disruption("TerminationByKubelet"),
        },
        "Terminated: Pod was terminated in response to imminent node shutdown.",
        False,
    ),
    "a node short of memory evicts it": (
        {"reason": "Evicted", "message": "The node was low on resource: memory.", "containerStatuses": [ended(137)]},
        "Evicted: The node was low on resource: memory.",
        False,
    ),
    "its node controller has lost the node": (
        {"reason": "NodeLost", "message": "Node n3 which was running pod p is unresponsive"},
        "NodeLost: Node n3 which was running pod p is unresponsive",
        False,
    ),
    "kubelet makes room for a critical pod": (
        {
            "reason": "Preempting",
            "message": "Preempted in order to admit critical pod",
            "conditions": disruption("TerminationByKubelet"),
        },
        "TerminationByKubelet: Preempted in order to admit critical pod",
        False,
    ),
    "the garbage collector removes it with its node": (
        {"conditions": disruption("DeletionByPodGC", "PodGC: node no longer exists")},
        "DeletionByPodGC: PodGC: node no longer exists",
        False,
    ),
}


@pytest.mark.parametrize(("status", "platform", "at_the_door"), BY_THE_PLATFORM.values(), ids=BY_THE_PLATFORM)
def test_the_platform_and_not_the_program_ended_it_when(
    status: dict[str, Any], platform: str, at_the_door: bool
) -> None:
    fate = fate_of(pod(phase="Failed", **status))
    assert (fate.platform, is_rejection(fate.platform)) == (platform, at_the_door)
    assert fate.is_over and fate.has_ended and not fate.is_running


@pytest.mark.parametrize(
    ("reason", "message"),
    [
        ("PreemptionByScheduler", "default-scheduler: preempting to accommodate a higher priority pod"),
        ("EvictionByEvictionAPI", "Eviction API: evicting"),
        ("DeletionByTaintManager", "Taint manager: deleting due to NoExecute taint"),
    ],
)
def test_a_pod_that_was_told_to_leave_says_who_told_it(reason: str, message: str) -> None:
    leaving = fate_of(
        pod(is_deleted=True, phase="Running", containerStatuses=[runs()], conditions=disruption(reason, message))
    )
    assert leaving.platform == f"{reason}: {message}"
    assert leaving.is_leaving and leaving.is_running and not leaving.has_ended


@pytest.mark.parametrize(("code", "phase"), [(0, "Succeeded"), (1, "Failed"), (137, "Failed")])
def test_a_program_that_ended_is_to_answer_for_its_exit(code: int, phase: str) -> None:
    fate = fate_of(pod(phase=phase, containerStatuses=[ended(code, "the last word")]))
    assert (fate.exit_code, fate.platform, fate.message) == (code, None, "the last word")


def test_a_node_that_does_not_answer_says_nothing_about_its_pods() -> None:
    fate = fate_of(pod(phase="Running", reason="NodeLost", containerStatuses=[runs()]))
    assert fate.platform is None and fate.is_running and not fate.has_ended


def test_a_disruption_that_did_not_come_to_pass_is_none() -> None:
    said = [{"type": "DisruptionTarget", "status": "False", "reason": "PreemptionByScheduler"}]
    assert fate_of(pod(phase="Failed", containerStatuses=[ended(1)], conditions=said)).platform is None


@pytest.mark.parametrize("containers", [(OURS, PROXY), (PROXY, OURS)], ids=["proxy last", "proxy first"])
def test_a_member_has_ended_with_its_own_container_whatever_else_runs_in_its_pod(containers: Any) -> None:
    statuses = [runs(name="istio-proxy"), ended(3, "the last word")]
    fate = fate_of(pod(phase="Running", containers=containers, containerStatuses=statuses))
    assert fate.has_ended and fate.has_company and not fate.is_over and not fate.is_running
    assert (fate.exit_code, fate.message) == (3, "the last word")


def test_a_member_alone_in_its_pod_has_no_company_before_the_kubelet_says_that_the_pod_is_over() -> None:
    """Such a pod ends by itself, and its log with it if somebody deletes it."""
    fate = fate_of(pod(phase="Running", containerStatuses=[ended(0)]))
    assert fate.has_ended and not fate.is_over and not fate.has_company
    both = [ended(0, name="istio-proxy"), ended(0)]
    assert not fate_of(pod(phase="Running", containers=(OURS, PROXY), containerStatuses=both)).has_company


@pytest.mark.parametrize("containers", [(OURS, PROXY), (PROXY, OURS)], ids=["proxy last", "proxy first"])
def test_a_member_runs_only_with_its_own_container(containers: Any) -> None:
    proxy_first = [runs(name="istio-proxy"), waits("PodInitializing")]
    fate = fate_of(pod(phase="Running", containers=containers, containerStatuses=proxy_first, conditions=[READY]))
    assert not fate.is_running and fate.preparing == "is pulling the image"
    ours_first = [waits("ErrImagePull", name="istio-proxy"), runs()]
    assert fate_of(pod(phase="Running", containers=containers, containerStatuses=ours_first)).is_running


def test_a_pull_is_told_from_volumes_and_a_network_that_do_not_come() -> None:
    pulls = fate_of(pod(phase="Pending", containerStatuses=[waits("ContainerCreating")], conditions=[READY]))
    assert (pulls.preparing, pulls.preparation(AT_TEN + 180.0)) == ("is pulling the image", 180.0)
    unready = {**READY, "status": "False"}
    waits_for_volumes = pod(phase="Pending", containerStatuses=[waits("ContainerCreating")], conditions=[unready])
    fate = fate_of(waits_for_volumes)
    assert (fate.preparing, fate.preparation(AT_TEN + 180.0)) == (None, 0.0)
    before_1_29 = pod(phase="Pending", containerStatuses=[waits("ContainerCreating")], startTime="2026-03-01T10:00:00Z")
    assert fate_of(before_1_29).preparation(AT_TEN + 180.0) == 180.0
    nobody_took_it = fate_of(pod(phase="Pending"))
    assert (nobody_took_it.preparing, nobody_took_it.stuck) == (None, None)


def test_what_a_pull_took_is_known_when_it_is_over() -> None:
    fate = fate_of(pod(phase="Running", containerStatuses=[runs("2026-03-01T10:03:00Z")], conditions=[READY]))
    assert fate.preparing is None and fate.preparation(AT_TEN + 9000.0) == 180.0


@pytest.mark.parametrize("reason", ["ErrImagePull", "ImagePullBackOff", "CreateContainerConfigError"])
def test_what_cannot_be_had_is_no_preparation_but_told_in_its_own_words(reason: str) -> None:
    status = {"phase": "Pending", "conditions": [READY]}
    fate = fate_of(pod(containerStatuses=[waits(reason, "no such thing")], **status))
    assert (fate.stuck, fate.preparing) == (f"{reason}: no such thing", None)
    init = [waits(reason, "no such thing", name="fetch")]
    fate = fate_of(
        pod(
            containerStatuses=[waits("PodInitializing")],
            initContainerStatuses=init,
            init=({"name": "fetch"},),
            **status,
        )
    )
    assert (fate.stuck, fate.preparing) == (f"{reason}: no such thing", None)


def test_an_init_container_that_runs_is_named_and_a_sidecar_is_none() -> None:
    status = {"phase": "Pending", "conditions": [READY], "containerStatuses": [waits("PodInitializing")]}
    init = ({"name": "mesh", "restartPolicy": "Always"}, {"name": "fetch"})
    both = fate_of(pod(init=init, initContainerStatuses=[runs(name="mesh"), runs(name="fetch")], **status))
    assert both.preparing == "is running the init container fetch"
    done = [runs(name="mesh"), ended(0, name="fetch")]
    assert fate_of(pod(init=init, initContainerStatuses=done, **status)).preparing == "is pulling the image"


def test_a_pod_that_kube_scheduler_cannot_place_says_why() -> None:
    said = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "0/3 nodes are available"}
    assert fate_of(pod(phase="Pending", conditions=[said])).stuck == "Unschedulable: 0/3 nodes are available"
