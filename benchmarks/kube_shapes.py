"""What the Kubernetes benchmark loads a cluster with, and how its figures follow from the times. Pure."""

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

GPUS_PER_NODE = 8
PLAIN, KUEUE, OURS = "plain", "kueue", "ours"


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """Gangs of one kind, submitted at once: `gangs` × `members` pods × `gpus` GPUs each.

    `priority` compares gangs of all batches. The name is a label of every pod, by which the observer counts.
    """

    name: str
    gangs: int
    members: int = 1
    gpus: int = 1
    priority: int = 0

    @property
    def pods(self) -> int:
        """Pods that run when all of it does."""
        return self.gangs * self.members


@dataclass(frozen=True, slots=True, kw_only=True)
class Scenario:
    """Batches one after the other; each has to run whole before the next comes. The last one is what is measured."""

    letter: str
    name: str
    nodes: int
    batches: tuple[Batch, ...]
    systems: tuple[str, ...]

    @property
    def gpus(self) -> int:
        """All GPUs of the cluster."""
        return self.nodes * GPUS_PER_NODE

    def scaled(self, factor: float) -> "Scenario":
        """The same at another size: fewer nodes and fewer gangs; a single gang has fewer members, one card has one."""

        def smaller(count: int) -> int:
            return max(1, round(count * factor)) if count > 1 else count

        batches = tuple(replace(b, gangs=smaller(b.gangs), members=smaller(b.members)) for b in self.batches)
        return replace(self, nodes=smaller(self.nodes), batches=batches)


def scenarios(scale: float = 1.0) -> dict[str, Scenario]:
    """All of them, by the letter that `--only` takes (the two of `c` are `c1` and `c2`)."""
    fill = Batch(name="fill", gangs=4000)
    found = (
        Scenario(
            letter="a",
            name="jobs4000",
            nodes=500,
            batches=(Batch(name="jobs", gangs=4000),),
            systems=(PLAIN, KUEUE, OURS),
        ),
        Scenario(
            letter="b",
            name="gang512",
            nodes=500,
            batches=(Batch(name="gang", gangs=1, members=64, gpus=GPUS_PER_NODE),),
            systems=(PLAIN, KUEUE, OURS),
        ),
        Scenario(
            letter="c1",
            name="reclaim1",
            nodes=500,
            batches=(fill, Batch(name="urgent", gangs=1, priority=90)),
            systems=(KUEUE, OURS),
        ),
        Scenario(
            letter="c2",
            name="reclaim2000",
            nodes=500,
            batches=(fill, Batch(name="urgent", gangs=1, members=250, gpus=GPUS_PER_NODE, priority=90)),
            systems=(KUEUE, OURS),
        ),
    )
    return {each.letter: each if scale == 1.0 else each.scaled(scale) for each in found}


def figures(walls: Mapping[tuple[str, str], float]) -> dict[str, float]:
    """The published figures that follow from (scenario, system) → seconds. What was not measured has no figure."""
    found: dict[str, float] = {}

    def ratio(name: str, scenario: str, peer: str) -> None:
        ours, theirs = walls.get((scenario, OURS)), walls.get((scenario, peer))
        if ours is not None and theirs:
            found[name] = ours / theirs

    ratio("jobs4000_wall_vs_kueue", "jobs4000", KUEUE)
    ratio("jobs4000_wall_vs_plain", "jobs4000", PLAIN)
    ratio("gang512_wall_vs_kueue", "gang512", KUEUE)
    for scenario in ("reclaim1", "reclaim2000"):
        if (scenario, OURS) in walls:
            found[f"{scenario}_s"] = walls[scenario, OURS]
        ratio(f"{scenario}_vs_kueue", scenario, KUEUE)
    return found


def overcommitted(pods: Iterable[Mapping[str, Any]]) -> dict[str, int]:
    """Nodes whose pods that have not ended hold more GPUs than there are, and how many: KWOK refuses no pod itself."""
    held: Counter[str] = Counter()
    for pod in pods:
        if (pod.get("status") or {}).get("phase") in ("Succeeded", "Failed") or not pod["spec"].get("nodeName"):
            continue
        for container in pod["spec"]["containers"]:
            limits = (container.get("resources") or {}).get("limits") or {}
            held[pod["spec"]["nodeName"]] += int(limits.get("nvidia.com/gpu", 0))
    return {node: count for node, count in held.items() if count > GPUS_PER_NODE}


def letters(text: str) -> list[str]:
    """The scenarios that `--only a,c` names; `c` is both reclaims. Raises `ValueError` naming what is none."""
    known = sorted(scenarios())
    found: list[str] = []
    for word in filter(None, (part.strip() for part in text.split(","))):
        some = [letter for letter in known if letter in (word,) or letter.rstrip("12") == word]
        if not some:
            raise ValueError(f"--only {word}: the scenarios are {', '.join(known)} (c is both of its own)")
        found += [letter for letter in some if letter not in found]
    return found
