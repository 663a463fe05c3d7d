"""Labels and annotations are anybody's to write: what is none of ours is nobody's gang, and no end of the worker."""

from typing import Any

import pytest

from dsec_blocks.model.gangs import MemberPlacement
from dsec_workers.clusters.kubernetes.counted import ANNOTATION_COUNTED, beyond
from dsec_workers.clusters.kubernetes.naming import (
    ANNOTATION_DEVICES,
    ANNOTATION_GRACE,
    ANNOTATION_NODE,
    ANNOTATION_START_TIMEOUT,
    LABEL_ATTEMPT,
    LABEL_MEMBER,
    LABEL_MEMBERS,
    LABEL_POOL,
    LABEL_RUN_ID,
    key_of,
    label_value,
    placement_of,
    timing_of,
)
from dsec_workers.clusters.kubernetes.roster import Roster
from dsec_workers.clusters.kubernetes.settings import KubernetesSettings
from dsec_workers.clusters.kubernetes.supply import Supply
from dsec_workers.clusters.protocol import GangKey
from tests.fixtures.clock import ManualClock

OURS = {LABEL_POOL: label_value("gpus"), LABEL_RUN_ID: "run", LABEL_ATTEMPT: "2", LABEL_MEMBER: "1", LABEL_MEMBERS: "4"}


def pod(labels: dict[str, str] | None = None, annotations: dict[str, str] | None = None) -> dict[str, Any]:
    cpu = {"resources": {"requests": {"cpu": "3"}}}
    metadata = {"name": "p", "namespace": "x", "uid": "u", "creationTimestamp": "2026-01-02T03:04:05Z"}
    return {
        "metadata": {**metadata, "labels": {**OURS, **(labels or {})}, "annotations": annotations or {}},
        "spec": {"nodeName": "n1", "containers": [cpu]},
    }


def test_a_pod_of_ours_is_told_by_its_labels() -> None:
    assert key_of(pod()) == GangKey("run", 2)


@pytest.mark.parametrize("label", [LABEL_ATTEMPT, LABEL_MEMBER, LABEL_MEMBERS])
@pytest.mark.parametrize("value", ["first", "-1", "1.5"])
def test_a_pod_whose_labels_say_no_number_surprises_nobody(label: str, value: str) -> None:
    odd = pod({label: value})
    assert key_of(odd) is None
    roster = Roster(pool="gpus")
    roster.pod_changed(None, odd)
    assert not roster.surprised.is_set(), "or the worker would adopt, fail at it, and end"
    roster.pod_changed(None, pod())
    assert roster.surprised.is_set()


@pytest.mark.parametrize("text", ["", "{", "3", "null", '{"cpu": "much"}', "[1]"])
def test_annotations_that_somebody_has_written_into_are_read_as_if_they_said_nothing(text: str) -> None:
    annotations = dict.fromkeys((ANNOTATION_DEVICES, ANNOTATION_GRACE, ANNOTATION_COUNTED), text)
    odd = pod(annotations={**annotations, ANNOTATION_NODE: "n1", ANNOTATION_START_TIMEOUT: "soon"})
    assert placement_of(odd).node == "n1"
    assert timing_of(odd)[1] == 0.0
    assert beyond(odd) == {}
    supply = Supply(KubernetesSettings(pool="gpus"), clock=ManualClock())
    supply.pod_changed(None, odd)


def test_annotations_of_ours_are_read() -> None:
    ours = pod(
        annotations={ANNOTATION_NODE: "n1", ANNOTATION_DEVICES: '["n1/nvidia.com/gpu/0"]', ANNOTATION_GRACE: "30"}
    )
    assert placement_of(ours) == MemberPlacement(node="n1", devices=("n1/nvidia.com/gpu/0",))
    assert timing_of(ours)[2] == 30.0


def test_a_gang_that_enters_finds_its_own_pods_as_they_are_now_and_no_others() -> None:
    roster = Roster(pool="gpus")
    first, second, other = pod(), pod({LABEL_MEMBER: "2"}), pod({LABEL_RUN_ID: "other"})
    second["metadata"]["name"], other["metadata"]["name"] = "p2", "p3"
    foreign = pod({LABEL_POOL: "another"})
    running = {**first, "status": {"phase": "Running"}}
    for before, after in ((None, first), (None, second), (None, other), (None, foreign), (first, running)):
        roster.pod_changed(before, after)
    roster.pod_changed(second, None)
    assert roster.pods_of(GangKey("run", 2)) == {1: running}
    assert set(roster.gangs_with_pods()) == {GangKey("run", 2), GangKey("other", 2)}
    roster.forgotten.add(GangKey("run", 2))
    assert roster.pods_of(GangKey("run", 2)) == {}
    assert roster.gangs_with_pods() == [GangKey("other", 2)]
