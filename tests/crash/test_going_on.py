"""A run is moved to make room for another while its worker is killed: whoever comes next sends it to its place."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from dsec_blocks.model.gangs import Gang, GangState
from tests.crash import cases, invariants
from tests.crash.play import Stage
from tests.crash.stories import LINGERS
from tests.crash.world import Strike, World
from tests.fixtures.rotation import in_turn

pytestmark = [pytest.mark.slow, pytest.mark.timeout(180)]


@pytest.fixture
def world_of(stage: Stage, tmp_path: Path) -> Iterator[Callable[[Strike], World]]:
    made: list[World] = []

    def make(strike: Strike) -> World:
        made.append(World(server=stage.server, home=tmp_path, zygote=stage.zygote, strike=strike, may_repeat=False))
        return made[0]

    yield make
    for world in made:
        world.close()


def running(world: World, run_id: str) -> Gang:
    found: Gang = world.wait(
        "it to run", lambda: (g := world.gang(run_id)) and g.state is GangState.RUNNING and g, 60.0
    )
    return found


STRIKES = (
    Strike(point="ledger.admit", mode="kill_after", visit=4),
    Strike(point="ledger.leave", mode="kill_before", visit=2),
    Strike(point="prefect.requeue.write", mode="kill_after"),
    Strike(point="ledger.requeue", mode="kill_after"),
)


@pytest.mark.parametrize("strike", in_turn(STRIKES, day=cases.seed(), days=2), ids=str)
def test_a_moved_run_gets_to_its_place_whenever_the_worker_dies(
    strike: Strike, world_of: Callable[[Strike], World]
) -> None:
    world = world_of(strike)
    world.ledger.put_policy(world.pool, {"consolidation": True}, by="crash", why="a test")
    world.begin()
    alone = {"nodes": 1, "devices_per_node": 1, "preemptible": False, "parameters": {"seconds": 170.0}}
    stays = world.start("waits", "stays", expects=("CANCELLED",), **alone)
    running(world, stays)
    beside = world.start("waits", "beside", expects=("CANCELLED",), **alone)
    place = running(world, beside).placement
    mover = world.train("mover", steps=60, nodes=1, devices_per_node=1, grace="8s", parameters=LINGERS)
    world.wait("the mover to commit", lambda: (g := world.gang(mover)) and g.last_commit_at)
    world.set_state(beside, "CANCELLING")
    world.wait("its room to be free", lambda: (g := world.gang(beside)) and g.state is GangState.ENDED)
    assert not world.was_struck, "it is the move that is to be struck"

    big = world.train("big", steps=5, nodes=1, devices_per_node=2)
    gone_on = world.wait("the mover to go on", lambda: (g := world.gang(mover)) and g.attempt == 2 and g, 90.0)

    assert world.was_struck, world.report()
    assert gone_on.placement == place, world.report()
    world.wait("both to be over", lambda: all(world.state(run)[0] == "COMPLETED" for run in (mover, big)), 90.0)
    assert any(text.startswith("Moves to make room for") for text in world.messages(mover)), world.messages(mover)
    world.set_state(stays, "CANCELLING")
    world.wait_until_over()
    found = [*invariants.broken(world), *invariants.broken_by_a_second_recovery(world)]
    assert not found, "\n".join([*found, world.report()])
