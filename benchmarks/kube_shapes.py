"""What the Kubernetes benchmark loads a cluster with, and how its figures follow from the times. Pure."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any

GPUS_PER_NODE = 8
PLAIN, KUEUE, OURS, PREFECT = "plain", "kueue", "ours", "prefect"
SYSTEMS = (PLAIN, KUEUE, OURS, PREFECT)
"""In the order in which they are measured; `prefect` is ours as users have it, the others come first."""
PREFECT_BASELINE, PREFECT_BASELINE_PART = "baseline1500", 0.1
"""Through Prefect the load of `d` is its first tenth: a server makes and ends some sixty runs a second."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """Gangs of one kind, submitted at once: `gangs` × `members` pods × `gpus` GPUs each.

    `priority` compares gangs of all batches. The name is a label of every pod, by which the observer counts. Gangs are
    dealt to the `queues` in turn; without any there is only one. Pods run for `run_seconds`, or for ever.
    """

    name: str
    gangs: int
    members: int = 1
    gpus: int = 1
    priority: int = 0
    queues: tuple[str, ...] = ()
    run_seconds: float | None = None

    @property
    def pods(self) -> int:
        """Pods that run when all of it does."""
        return self.gangs * self.members

    def queue_of(self, number: int) -> str | None:
        """The queue of one of its gangs; None is the only one."""
        return self.queues[number % len(self.queues)] if self.queues else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Quotas:
    """Queues in cohorts: each owns `gpus`, and borrows up to `borrowing` more of what its cohort leaves idle."""

    cohorts: int
    queues_each: int
    gpus: int
    borrowing: int

    def by_cohort(self) -> dict[str, tuple[str, ...]]:
        """The names of each cohort's queues."""
        return {
            f"cohort-{number}": tuple(f"cohort-{number}-queue-{index}" for index in range(self.queues_each))
            for number in range(self.cohorts)
        }

    def queues(self) -> tuple[str, ...]:
        """All queues, those of different cohorts in turn."""
        return tuple(name for names in zip(*self.by_cohort().values(), strict=True) for name in names)


@dataclass(frozen=True, slots=True, kw_only=True)
class Scenario:
    """Batches one after the other; each has to run whole before the next comes. The last one is what is measured.

    With `quotas` all batches come at once instead, mixed, and what is measured is until all their pods have ended.
    """

    letter: str
    name: str
    nodes: int
    batches: tuple[Batch, ...]
    systems: tuple[str, ...]
    gpus_per_node: int = GPUS_PER_NODE
    quotas: Quotas | None = None

    @property
    def gpus(self) -> int:
        """All GPUs of the cluster."""
        return self.nodes * self.gpus_per_node

    def scaled(self, factor: float) -> "Scenario":
        """The same at another size: fewer nodes and fewer gangs; a single gang has fewer members, one card has one.

        Where there are quotas, they and the nodes stay: only fewer gangs come.
        """

        def smaller(count: int) -> int:
            return max(1, round(count * factor)) if count > 1 else count

        batches = tuple(replace(b, gangs=smaller(b.gangs), members=smaller(b.members)) for b in self.batches)
        return replace(self, nodes=self.nodes if self.quotas else smaller(self.nodes), batches=batches)


def scenarios(scale: float = 1.0) -> dict[str, Scenario]:
    """All of them, by the letter that `--only` takes (the two of `c` are `c1` and `c2`).

    `d` is the load of Kueue's own scheduler benchmark (test/performance/scheduler/configs/baseline). Its quotas add up
    to half of the GPUs there, so that the largest pod finds a node whenever its queue has room, and nothing but the
    quotas decides.
    """
    fill = Batch(name="fill", gangs=4000)
    quotas = Quotas(cohorts=5, queues_each=6, gpus=20, borrowing=100)
    queues = quotas.queues()
    found = (
        Scenario(
            letter="a",
            name="jobs4000",
            nodes=500,
            batches=(Batch(name="jobs", gangs=4000),),
            systems=SYSTEMS,
        ),
        Scenario(
            letter="b",
            name="gang512",
            nodes=500,
            batches=(Batch(name="gang", gangs=1, members=64, gpus=GPUS_PER_NODE),),
            systems=SYSTEMS,
        ),
        Scenario(
            letter="c1",
            name="reclaim1",
            nodes=500,
            batches=(fill, Batch(name="urgent", gangs=1, priority=90)),
            systems=(KUEUE, OURS, PREFECT),
        ),
        Scenario(
            letter="c2",
            name="reclaim2000",
            nodes=500,
            batches=(fill, Batch(name="urgent", gangs=1, members=250, gpus=GPUS_PER_NODE, priority=90)),
            systems=(KUEUE, OURS, PREFECT),
        ),
        Scenario(
            letter="d",
            name="baseline15000",
            nodes=30,
            gpus_per_node=40,
            quotas=quotas,
            batches=tuple(
                Batch(name=name, gangs=each * 30, gpus=gpus, priority=level, queues=queues, run_seconds=seconds)
                for name, each, gpus, level, seconds in (
                    ("small", 350, 1, 50, 0.2), ("medium", 100, 5, 100, 0.5), ("large", 50, 20, 200, 1.0),
                )
            ),
            systems=(KUEUE, OURS, PREFECT),
        ),
    )  # fmt: skip
    return {each.letter: each if scale == 1.0 else each.scaled(scale) for each in found}


def for_system(scenario: Scenario, system: str) -> Scenario:
    """What one system is given of a scenario: all of it, but through Prefect of a long one only the first part."""
    if system != PREFECT or scenario.quotas is None:
        return scenario
    return replace(scenario.scaled(PREFECT_BASELINE_PART), name=PREFECT_BASELINE)


def mixed(batches: Sequence[Batch]) -> list[tuple[Batch, int]]:
    """All gangs of all batches, as (batch, number), each batch spread evenly over the whole."""
    places = [((number + 0.5) / batch.gangs, batch, number) for batch in batches for number in range(batch.gangs)]
    return [(batch, number) for _, batch, number in sorted(places, key=lambda place: (place[0], place[1].name))]


RATIOS = {
    "jobs4000_wall_vs_kueue": ("jobs4000", KUEUE),
    "jobs4000_wall_vs_plain": ("jobs4000", PLAIN),
    "gang512_wall_vs_kueue": ("gang512", KUEUE),
    "baseline15000_wall_vs_kueue": ("baseline15000", KUEUE),
    "reclaim1_vs_kueue": ("reclaim1", KUEUE),
    "reclaim2000_vs_kueue": ("reclaim2000", KUEUE),
}
"""Figure → the scenario, and the peer by whose time ours is divided."""


def figures(
    walls: Mapping[tuple[str, str], float], given_up: Mapping[tuple[str, str], float] = MappingProxyType({})
) -> dict[str, float]:
    """The published figures that follow from (scenario, system) → seconds. What was not measured has no figure.

    A peer that was `given_up` after so many seconds took longer: the ratio is then an upper bound (`bounds`).
    """
    found = {
        f"{scenario}_s": walls[scenario, OURS] for scenario in ("reclaim1", "reclaim2000") if (scenario, OURS) in walls
    }
    for name, (scenario, peer) in RATIOS.items():
        ours, theirs = walls.get((scenario, OURS)), walls.get((scenario, peer)) or given_up.get((scenario, peer))
        if ours is not None and theirs:
            found[name] = ours / theirs
    return found


def bounds(walls: Mapping[tuple[str, str], float], given_up: Mapping[tuple[str, str], float]) -> dict[str, str]:
    """Those of `figures` that are at most what is said, and why."""
    return {
        name: f"at most: {peer} was given up after {given_up[scenario, peer]:g} s"
        for name, (scenario, peer) in RATIOS.items()
        if (scenario, peer) in given_up and (scenario, peer) not in walls and (scenario, OURS) in walls
    }


def overcommitted(pods: Iterable[Mapping[str, Any]], *, gpus_per_node: int = GPUS_PER_NODE) -> dict[str, int]:
    """Nodes whose pods that have not ended hold more GPUs than there are, and how many: KWOK refuses no pod itself."""
    held: Counter[str] = Counter()
    for pod in pods:
        if (pod.get("status") or {}).get("phase") in ("Succeeded", "Failed") or not pod["spec"].get("nodeName"):
            continue
        for container in pod["spec"]["containers"]:
            limits = (container.get("resources") or {}).get("limits") or {}
            held[pod["spec"]["nodeName"]] += int(limits.get("nvidia.com/gpu", 0))
    return {node: count for node, count in held.items() if count > gpus_per_node}


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
