"""What a run is expected to last, from runs like it."""

import pytest

from dsec_blocks.model.durations import REMEMBERED, after, expected_seconds, histories_of, seconds_left
from dsec_blocks.model.requests import GangRequest

SHAPE = GangRequest(nodes=2, devices_per_node=4)
NAMES = histories_of("d1", "a", SHAPE)


def test_the_most_telling_history_that_is_long_enough_speaks() -> None:
    assert NAMES == ("deployment d1 2x4", "team a 2x4", "team a", "pool")
    assert histories_of("", "a", SHAPE) == NAMES[1:]
    few, many = [10.0] * 4, [100.0] * 5
    assert expected_seconds(NAMES, {"deployment d1 2x4": few, "team a 2x4": many}) == 100.0
    assert expected_seconds(NAMES, {"deployment d1 2x4": [*few, 10.0], "team a 2x4": many}) == 10.0
    assert expected_seconds(NAMES, {"pool": many, "team b": [7.0] * 9}) == 100.0


def test_without_history_nothing_is_expected() -> None:
    assert expected_seconds(NAMES, {}) is None
    assert expected_seconds(NAMES, {"pool": [5.0] * 4}) is None


def test_half_of_the_runs_were_over_by_then_and_one_that_hung_changes_nothing() -> None:
    assert expected_seconds(NAMES, {"pool": [10.0, 20.0, 30.0, 40.0, 1e6]}) == 30.0


def test_a_history_forgets_what_users_did_long_ago() -> None:
    history: list[float] = []
    for seconds in [1.0] * REMEMBERED + [60.0] * REMEMBERED:
        history = after(history, seconds)
    assert history == [60.0] * REMEMBERED


@pytest.mark.parametrize(("had", "left"), [(0.0, 100.0), (30.0, 70.0), (100.0, 100.0), (250.0, 150.0)])
def test_what_a_run_has_had_before_counts_and_what_it_outlived_is_doubled(had: float, left: float) -> None:
    assert seconds_left(100.0, had) == left
