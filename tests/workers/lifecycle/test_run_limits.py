"""Limits set in the Prefect UI count runs, from their reservation until they have left."""

from dataclasses import replace

import pytest

from dsec_blocks.model.gangs import Gang, GangState
from dsec_blocks.model.requests import GangRequest
from dsec_workers.lifecycle.run_limits import RunLimits

GANG = Gang(
    run_id="a", name="a", pool="pool", team="vision", request=GangRequest(nodes=1, devices_per_node=1),
    state=GangState.RUNNING, submitted_at=0.0, eligible_at=0.0,
)  # fmt: skip


def test_without_a_limit_there_is_always_room() -> None:
    room = RunLimits().room([GANG] * 100)
    assert room.take("vision")
    assert room.reason("vision") is None


@pytest.mark.parametrize("state", [GangState.RESERVED, GangState.LAUNCHING, GangState.RUNNING, GangState.LEAVING])
def test_who_has_begun_counts_until_it_has_left(state: GangState) -> None:
    room = RunLimits(queues={"vision": 1}).room([replace(GANG, state=state)])
    assert not room.take("vision")
    assert room.take("speech")


def test_who_waits_or_has_ended_does_not_count() -> None:
    room = RunLimits(pool=1).room([replace(GANG, state=GangState.WAITING), replace(GANG, state=GangState.ENDED)])
    assert room.take("vision")
    assert not room.take("speech"), "the pool's limit is for all queues together"


def test_the_reason_names_the_limit_that_is_reached() -> None:
    limits = RunLimits(pool=2, queues={"vision": 1})
    one = limits.room([GANG]).reason("vision")
    both = limits.room([GANG, replace(GANG, team="speech")]).reason("vision")
    assert one is not None and both is not None
    assert one.text == "work queue vision is limited to 1 run at a time (in Prefect)"
    assert both.text == "the work pool is limited to 2 runs at a time (in Prefect)"
