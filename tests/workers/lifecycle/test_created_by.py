"""Who started a run: what Prefect knows, else what the run's tags say."""

from dataclasses import replace
from typing import Any

import pytest

from dsec_workers.lifecycle.intake import created_by
from tests.workers.lifecycle.records import run, state

SOMEBODY = {"id": "1", "type": "USER", "display_value": "ann"}


@pytest.mark.parametrize(
    ("raw", "who"),
    [
        ({"created_by": SOMEBODY}, "ann"),
        ({"created_by": SOMEBODY, "tags": ["user:bob"]}, "ann"),
        ({"created_by": {"type": "DEPLOYMENT", "display_value": "nightly"}, "tags": ["x", "user:bob"]}, "bob"),
        ({"created_by": {"type": "AUTOMATION", "display_value": "retry"}}, ""),
        ({"created_by": None, "tags": ["user:bob"]}, "bob"),
        ({}, ""),
    ],
)
def test_a_user_is_believed_before_a_tag_and_schedules_are_nobody(raw: dict[str, Any], who: str) -> None:
    assert created_by(replace(run(state("SCHEDULED")), raw=raw)) == who
