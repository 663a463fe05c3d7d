"""A worker on one machine says what its nodes have beside their cards, and a member that asks for more waits."""

from pathlib import Path

import psutil

from dsec_blocks.model.devices import Node
from dsec_workers.machine import nodes_of, sharing
from dsec_workers.settings import WorkerSettings
from tests.workers.scheduling.world import admitted, cluster, decide, node, waiting, why

GIB = 1 << 30


def test_declared_nodes_share_the_machine() -> None:
    nodes = sharing([Node(name="a"), Node(name="b"), Node(name="c")], cpus=4, memory_bytes=12 * GIB)
    assert [(n.cpus, n.memory_bytes) for n in nodes] == [(1.333, 4 * GIB)] * 3


def test_a_pool_without_nodes_has_none() -> None:
    assert sharing([], cpus=4, memory_bytes=GIB) == ()


def test_what_is_reported_is_what_this_machine_has(tmp_path: Path) -> None:
    nodes = nodes_of(WorkerSettings(home=tmp_path, ledger_url="", holder="me", nodes=2, gpus_per_node=1))
    assert sum(n.memory_bytes or 0 for n in nodes) == psutil.virtual_memory().total // 2 * 2
    assert 0 < sum(n.cpus or 0 for n in nodes) <= (psutil.cpu_count() or 1)


def test_members_that_say_what_they_need_are_not_promised_the_same_processors() -> None:
    pool = cluster(sharing([node("n1", 4), node("n2", 4)], cpus=8, memory_bytes=64 * GIB))
    queue = [waiting(f"r{i}", "1", cpus=3, waited=100 - i) for i in range(3)]
    result = decide(pool, *queue)
    assert {run: len(nodes) for run, nodes in admitted(result).items()} == {"r0": 1, "r1": 1}
    assert list(why(result)) == ["r2"]
    assert why(decide(pool, waiting("big", "1", cpus=5))) == {"big": "never-fits"}
