"""Nodes and pods of the Alibaba GPU trace 2023, and the arrivals that the published experiment makes of them.

The experiment (Weng et al., USENIX ATC 2023, and their simulator): the list is shuffled; pods drawn from it with
replacement follow until requests come to 130 % of the cluster's cards; every pod is placed once and never leaves; one
that fits nowhere is dropped. The nodes are put in an order of their own for each seed, and of nodes with equal scores
the first in that order is taken. Pod list columns: cpu_milli, memory_mib, num_gpu, gpu_milli, and optionally gpu_spec
(models joined by "|").
"""

import csv
import random
from collections import Counter
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from dsec_workers.scheduling.fleet import DeviceClass
from dsec_workers.scheduling.fragmentation import Headroom
from dsec_workers.scheduling.shapes import WHOLE, MemberShape

NODES = "openb_node_list_gpu_node.csv"
LISTS = "openb_pod_list_*.csv"
UNTIL = 1.3


@dataclass(frozen=True)
class Cluster:
    """The empty cluster; of nodes with equal scores the first is taken."""

    names: tuple[str, ...]
    classes: tuple[DeviceClass, ...]
    room: Headroom

    @property
    def capacity(self) -> int:
        """Thousandths of cards."""
        return int(self.room.cards.sum())

    def in_order_of(self, seed: int) -> "Cluster":
        """The same nodes in the order of that seed.

        The published simulator renames the nodes so before each run. By name, nodes of one kind lie side by side, and
        where processors are short that costs FGD nearly a point.
        """
        order = list(range(len(self.names)))
        random.Random(f"nodes of {seed}").shuffle(order)
        return replace(self, names=tuple(self.names[row] for row in order), room=self.room.rows(np.array(order)))


def read_cluster(path: Path) -> Cluster:
    """The nodes with cards of a node list."""
    with path.open(encoding="utf-8", newline="") as text:
        rows = sorted((row for row in csv.DictReader(text) if int(row["gpu"])), key=lambda row: row["sn"])
    classes = tuple(DeviceClass(model=model, memory_bytes=0) for model in sorted({row["model"] for row in rows}))
    number = {kind.model: i for i, kind in enumerate(classes)}
    sizes = np.array([int(row["gpu"]) for row in rows])
    return Cluster(
        names=tuple(row["sn"] for row in rows),
        classes=classes,
        room=Headroom(
            cards=np.where(np.arange(sizes.max())[None, :] < sizes[:, None], WHOLE, 0),
            cpu_milli=np.array([float(row["cpu_milli"]) for row in rows]),
            memory_mib=np.array([float(row["memory_mib"]) for row in rows]),
            kind=np.array([number[row["model"]] for row in rows]),
        ),
    )


def read_pods(path: Path) -> tuple[MemberShape, ...]:
    """The pods of a list, in its order."""
    with path.open(encoding="utf-8", newline="") as text:
        return tuple(_pod(row) for row in csv.DictReader(text))


def _pod(row: dict[str, str]) -> MemberShape:
    devices = int(row["num_gpu"])
    return MemberShape(
        devices=devices,
        share=int(row["gpu_milli"]) if devices == 1 else WHOLE,
        cpu_milli=int(row["cpu_milli"]),
        memory_mib=int(row["memory_mib"]),
        models=tuple(sorted(filter(None, (row.get("gpu_spec") or "").split("|")))),
    )


def arrivals(pods: tuple[MemberShape, ...], capacity: int, seed: int) -> list[MemberShape]:
    """The list in random order, then pods drawn from it, until 130 % of `capacity` is asked for."""
    dice = random.Random(seed)
    sequence = list(pods)
    dice.shuffle(sequence)
    asked = sum(pod.thousandths for pod in sequence)
    while True:
        pod = dice.choice(pods)
        if asked + pod.thousandths > UNTIL * capacity:
            return sequence
        asked += pod.thousandths
        sequence.append(pod)


def frequencies(pods: tuple[MemberShape, ...]) -> list[tuple[MemberShape, float]]:
    """The published method's typical pods: the most frequent ones that make up 95 % of all, memory left aside."""
    counts = Counter(
        MemberShape(devices=p.devices, share=p.share, cpu_milli=p.cpu_milli, models=p.models) for p in pods
    )
    chosen: list[tuple[MemberShape, float]] = []
    covered = 0
    for shape, count in sorted(counts.items(), key=lambda pair: (-pair[1], pair[0])):
        if covered >= 0.95 * len(pods):
            break
        chosen.append((shape, float(count)))
        covered += count
    return [(shape, count / covered) for shape, count in chosen]
