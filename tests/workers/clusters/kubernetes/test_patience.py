"""How long a start may take, by what its pods' statuses say."""

from typing import Any

import pytest

from dsec_blocks.model.errors import InvalidRequest
from dsec_workers.clusters.kubernetes.credentials import ClusterAccess
from dsec_workers.clusters.kubernetes.patience import Patience
from dsec_workers.clusters.kubernetes.pod_fate import Fate, fate_of
from dsec_workers.clusters.kubernetes.settings import KubernetesSettings
from tests.workers.clusters.kubernetes.test_pod_fate import AT_TEN, READY, pod, runs, waits

PULLS = fate_of(pod(phase="Pending", containerStatuses=[waits("ContainerCreating")], conditions=[READY]))
REFUSED = fate_of(pod(phase="Pending", containerStatuses=[waits("ErrImagePull", "denied")], conditions=[READY]))
RUNS = fate_of(pod(phase="Running", containerStatuses=[runs("2026-03-01T10:00:01Z")], conditions=[READY]))


def patience(fates: dict[int, Fate], *, at: float, **fields: Any) -> Patience:
    """With a gang of two whose pods were so `at` seconds after their volumes were there."""
    found = Patience(**{"count": 2, "pull_seconds": 1200.0, **fields})
    found.see(fates, AT_TEN + at)
    return found


def test_a_pull_is_not_counted_against_the_start() -> None:
    fates = {0: RUNS, 1: PULLS}
    assert patience(fates, at=600.0).late(fates, 480.0, AT_TEN + 600.0) == {}


def test_a_pull_that_never_ends_is_given_up_on_with_what_it_was() -> None:
    fates = {0: RUNS, 1: PULLS}
    late = patience(fates, at=1300.0).late(fates, 1201.0, AT_TEN + 1300.0)
    assert late == {1: "its node is pulling the image (22 min so far)"}


def test_a_pull_that_is_refused_has_the_ordinary_time_and_gives_its_own_words() -> None:
    fates = {0: RUNS, 1: REFUSED}
    given = patience(fates, at=121.0)
    assert given.late(fates, -1.0, AT_TEN + 119.0) == {}
    assert given.late(fates, 1.0, AT_TEN + 121.0) == {1: "ErrImagePull: denied"}


def test_a_member_whose_pull_is_refused_is_not_waited_for_because_another_pulls() -> None:
    fates = {0: PULLS, 1: REFUSED}
    assert patience(fates, at=121.0).late(fates, 1.0, AT_TEN + 121.0) == {1: "ErrImagePull: denied"}


def test_what_a_pull_had_before_an_error_is_not_taken_back() -> None:
    given = patience({0: RUNS, 1: PULLS}, at=600.0)
    fates = {0: RUNS, 1: REFUSED}
    given.see(fates, AT_TEN + 630.0)
    assert given.late(fates, 510.0, AT_TEN + 630.0) == {}
    assert given.late(fates, 601.0, AT_TEN + 721.0) == {1: "ErrImagePull: denied"}


def test_the_barrier_has_the_ordinary_time_beside_the_slowest_pull() -> None:
    pulled = fate_of(pod(phase="Running", containerStatuses=[runs("2026-03-01T10:10:00Z")], conditions=[READY]))
    given = patience({0: RUNS, 1: pulled}, at=700.0)  # as a worker that came only now sees it
    assert not given.is_shut_too_long(590.0)
    assert given.is_shut_too_long(601.0)


def test_members_without_a_pod_are_late_in_the_ordinary_time() -> None:
    given = patience({0: PULLS}, at=130.0)
    assert given.late({0: PULLS}, 1.0, AT_TEN + 130.0) == {1: "no pod"}


def test_a_slow_start_is_told_after_a_while_and_again_each_time_it_has_lasted_twice_as_long() -> None:
    given, fates = Patience(count=2, pull_seconds=1200.0), {0: RUNS, 1: PULLS}
    told = [(at, given.news(fates, AT_TEN + at)) for at in range(0, 200, 10)]
    assert [(at, words) for at, words in told if words] == [
        (20, "node n3 is pulling the image (20 s so far)"),
        (40, "node n3 is pulling the image (40 s so far)"),
        (80, "node n3 is pulling the image (80 s so far)"),
        (160, "node n3 is pulling the image (3 min so far)"),
    ]
    assert Patience(count=2, pull_seconds=1.0).news({0: PULLS, 1: PULLS}, AT_TEN + 60.0) == (
        "node n3 is pulling the image (60 s so far), 1 more of its nodes too"
    )


def test_the_time_for_pulls_is_a_setting() -> None:
    def seconds(**environment: str) -> float:
        access = ClusterAccess()
        return KubernetesSettings.from_environment("gpus", access=access, environment=environment).pull_seconds

    assert (seconds(), seconds(DSEC_IMAGE_PULL="1h")) == (1200.0, 3600.0)
    with pytest.raises(InvalidRequest, match="DSEC_IMAGE_PULL"):
        seconds(DSEC_IMAGE_PULL="long")
