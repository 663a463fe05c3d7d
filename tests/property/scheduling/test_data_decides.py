"""What a node's cache holds decides between nodes that are equal otherwise, and nothing else."""

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dsec_blocks.model.devices import Device, Node
from dsec_blocks.model.gangs import Placement
from dsec_blocks.model.requests import Topology
from dsec_workers.scheduling import Policy, QueuedGang, build_snapshot, plan
from tests.property.scheduling.worlds import NOW, nodes, queues, running, teams

SECONDS = st.integers(-2000, 2000).map(float)


def domain_of(cluster: list[Node], placement: Placement) -> tuple[int, str]:
    """The tightest domain that the placement lies in: how wide it is, and which one it is."""
    known: dict[str, tuple[Device, Node]] = {device.uuid: (device, node) for node in cluster for device in node.devices}
    used = [known[uuid] for uuid in placement.devices]
    linked = {device.nvlink_domain for device, _ in used}
    racks, zones = {node.topology[-1] for _, node in used}, {node.topology[0] for _, node in used}
    if len(used) == 1 or (len(linked) == 1 and linked != {""}):
        return 0, linked.pop()
    return (1, racks.pop()) if len(racks) == 1 else (2, zones.pop())


@pytest.mark.slow
@pytest.mark.timeout(300)
@settings(max_examples=150, deadline=None)
@given(data=st.data())
def test_data_moves_a_gang_only_inside_the_domain_that_it_gets_anyway_and_only_to_more_data(
    data: st.DataObject,
) -> None:
    cluster = data.draw(nodes(least=2, most=7))
    snapshot = build_snapshot(
        nodes=cluster, running=data.draw(running(cluster, most=4)), teams=data.draw(teams()), pool="p"
    )
    gang = data.draw(queues(most=1))[0]
    saved = data.draw(st.dictionaries(st.sampled_from([*(n.name for n in cluster), "gone"]), SECONDS))
    policy = Policy(cache_seconds_per_card=data.draw(st.sampled_from([1.0, 600.0, 1e9])))
    blind = plan(snapshot, [gang], policy, NOW)
    seeing = plan(snapshot, [replace(gang, seconds_saved=tuple(sorted(saved.items())))], policy, NOW)
    assert [hold.reason for hold in seeing.holds] == [hold.reason for hold in blind.holds]
    assert [admit.run_id for admit in seeing.admits] == [admit.run_id for admit in blind.admits]
    for with_data, without in zip(seeing.admits, blind.admits, strict=True):
        assert (with_data.victims, with_data.moves, with_data.resizes) == (
            without.victims, without.moves, without.resizes,
        )  # fmt: skip
        there, elsewhere = domain_of(cluster, with_data.placement), domain_of(cluster, without.placement)
        assert there[0] == elsewhere[0]
        if gang.request.nodes > 1 and gang.request.topology is not Topology.SPREAD:
            assert there == elsewhere
        worth = [sum(saved.get(m.node, 0.0) for m in each.placement.members) for each in (with_data, without)]
        assert worth[0] >= worth[1]


@pytest.mark.slow
@pytest.mark.timeout(300)
@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_nodes_that_all_hold_as_much_are_chosen_from_as_if_none_did(data: st.DataObject) -> None:
    cluster = data.draw(nodes(least=2, most=7))
    snapshot = build_snapshot(nodes=cluster, running=(), teams=data.draw(teams()), pool="p")
    wait: list[QueuedGang] = data.draw(queues(most=6))
    everywhere = tuple((node.name, 64.0) for node in cluster)
    policy = Policy(cache_seconds_per_card=64.0)  # whole cards: no sum is rounded
    blind = plan(snapshot, wait, policy, NOW)
    seeing = plan(snapshot, [replace(gang, seconds_saved=everywhere) for gang in wait], policy, NOW)
    assert seeing == blind
