"""What `dsec explain` says beside what it is given."""

from typing import Any

import pytest

from dsec_deployments.cli.explain import _starts_late


def waits(attempt: int, why: str) -> dict[str, Any]:
    return {"stage": "start", "outcome": "waits", "why": why, "detail": {"attempt": attempt}}


STORY = [
    waits(1, "node n1 is pulling the image (20 s so far)"),
    waits(2, "node n3 is pulling the image (20 s so far)"),
    waits(2, "node n3 is pulling the image (3 min so far)"),
    {"stage": "launch", "outcome": "launched", "why": "", "detail": {"attempt": 2}},
]


@pytest.mark.parametrize(
    ("state", "attempt", "told"),
    [
        ("launching", 2, "node n3 is pulling the image (3 min so far)"),
        ("launching", 3, None),
        ("running", 2, None),
    ],
)
def test_a_start_that_takes_long_is_explained_by_the_newest_word_of_its_attempt(
    state: str, attempt: int, told: str | None
) -> None:
    assert _starts_late({"gang": {"state": state, "attempt": attempt}, "decisions": STORY}) == told
