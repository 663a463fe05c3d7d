"""The replays of the benchmarks come out as recorded, policy by policy and figure by figure."""

import os
from pathlib import Path

import pytest

from benchmarks import expectations

DATA = Path(os.environ.get("DSEC_DATA", Path(__file__).parents[3] / "shared" / "data"))


@pytest.mark.slow
def test_the_first_jobs_of_philly_come_out_as_recorded_under_every_policy() -> None:
    if not (DATA / "philly" / "philly.csv").exists():
        pytest.skip(f"no philly/philly.csv under {DATA}; point DSEC_DATA to the folder that holds it")
    assert expectations.differences(expectations.read("philly"), expectations.philly_part()) == []


@pytest.mark.slow
def test_the_article_s_submission_test_comes_out_as_recorded() -> None:
    assert expectations.differences(expectations.read("article"), expectations.article_part()) == []


def test_a_figure_that_is_off_a_policy_that_is_missing_and_one_that_is_new_are_told() -> None:
    expected = {"fifo": {"mean_wait": 1000.0, "evictions": 0.0}, "easy": {"mean_wait": 5.0}}
    near = {"fifo": {"mean_wait": 1000.9, "evictions": 0.0}, "easy": {"mean_wait": 5.0}}
    assert expectations.differences(expected, near) == []
    far = {"fifo": {"mean_wait": 1002.0, "evictions": 0.0}, "new": {"mean_wait": 1.0}}
    assert expectations.differences(expected, far) == [
        "new: not expected",
        "fifo, mean_wait: expected 1,000.0, found 1,002.0",
        "easy, mean_wait: expected 5.0, found None",
    ]
