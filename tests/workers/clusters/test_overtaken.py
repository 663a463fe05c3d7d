"""A run that somebody ended around its claim: its user code must not run."""

from datetime import UTC, datetime
from types import SimpleNamespace

import pytest
from prefect.client.schemas.objects import State
from prefect.states import Cancelling, Completed, Pending, Scheduled

from dsec_blocks.model.names import ENV_NEVER_STARTED
from dsec_workers.clusters.local.engine import is_overtaken

NEVER, BEFORE = {ENV_NEVER_STARTED: "1"}, {ENV_NEVER_STARTED: ""}


@pytest.mark.parametrize(
    ("case", "state", "has_start_time", "env", "overtaken"),
    [
        ("a first start", Pending(), False, NEVER, False),
        ("completed before the claim, which replaced it", Pending(), True, NEVER, True),
        ("a run that has run before", Pending(), True, BEFORE, False),
        ("a flow process that was not told", Pending(), True, {}, False),
        ("completed after the claim", Completed(), True, NEVER, True),
        ("cancelled after the claim", Cancelling(), False, NEVER, True),
        ("given back to the queue", Scheduled(), False, BEFORE, True),
    ],
)
def test_what_the_flow_process_makes_of_its_run(
    case: str, state: State, has_start_time: bool, env: dict[str, str], overtaken: bool
) -> None:
    flow_run = SimpleNamespace(state=state, start_time=datetime.now(UTC) if has_start_time else None)
    assert is_overtaken(flow_run, env) is overtaken, case
