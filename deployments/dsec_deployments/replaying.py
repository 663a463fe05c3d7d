"""`dsec simulate` without the terminal: inputs read and checked first, then one replay after the other."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from dsec_blocks.model.devices import Node
from dsec_blocks.model.errors import InvalidRequest
from dsec_blocks.model.teams import Team
from dsec_workers.lifecycle.policy_text import policy_from_yaml
from dsec_workers.scheduling import Policy
from dsec_workers.simulation import measures
from dsec_workers.simulation.jobs import Trace
from dsec_workers.simulation.overheads import Overheads
from dsec_workers.simulation.policies import BASELINES, baseline, equal_teams, production
from dsec_workers.simulation.recording import Recording
from dsec_workers.simulation.replay import Failure, Replay


@dataclasses.dataclass(frozen=True, kw_only=True)
class Study:
    """Everything one comparison depends on."""

    trace: Trace
    nodes: Sequence[Node]
    policy: Policy
    compare: tuple[str, ...] = ()
    overheads: Overheads = dataclasses.field(default_factory=Overheads)
    failures: tuple[Failure, ...] = ()
    tick: float = 1.0

    def __post_init__(self) -> None:
        for name in self.compare:
            if name not in BASELINES:
                raise InvalidRequest(
                    f"--compare: {name!r} is not a scheduler to compare with; there are {', '.join(BASELINES)}"
                )

    @property
    def names(self) -> tuple[str, ...]:
        """Schedulers in the order of the table, the pool's own first."""
        return ("dsec", *dict.fromkeys(self.compare))

    @property
    def devices(self) -> int:
        """Devices of the cluster."""
        return sum(len(node.devices) for node in self.nodes)

    @property
    def teams(self) -> Mapping[str, Team]:
        """The trace's quotas, equal parts where it states none."""
        return self.trace.teams or equal_teams([job.team for job in self.trace.jobs], self.devices)

    def replay(self, name: str) -> Replay:
        """The trace under one scheduler, not begun."""
        if name == "dsec":
            # The estimates that people are shown decide nothing and cost time.
            policy = dataclasses.replace(self.policy, eta_positions=0)
            scheduler = production(
                self.nodes, self.teams, policy, overheads=self.overheads, beginning=self.trace.beginning
            )
        else:
            scheduler = baseline(name, self.teams)
        return Replay(
            self.trace,
            self.nodes,
            scheduler,
            overheads=self.overheads,
            failures=self.failures,
            tick=self.tick,
            stopwatch=time.perf_counter,
        )


def run(study: Study) -> Iterator[tuple[str, int, Recording | None]]:
    """Replay under every scheduler; yields (name, jobs that have ended) as it goes, with the recording at the end."""
    for name in study.names:
        replay = study.replay(name)
        for step, _ in enumerate(replay.steps()):
            if step % 20 == 0:
                yield name, replay.ended, None
        yield name, replay.ended, replay.recording


def document(study: Study, recordings: Mapping[str, Recording]) -> dict[str, Any]:
    """The JSON of a comparison."""
    return {
        "trace": study.trace.name,
        "jobs": len(study.trace.jobs),
        "remarks": list(study.trace.remarks),
        "nodes": len(study.nodes),
        "devices": study.devices,
        "policy_version": study.policy.version,
        "overheads": dataclasses.asdict(study.overheads),
        "tick_seconds": study.tick,
        "policies": {
            name: {
                **{k: v for k, v in measures.figures(recording).items() if k != "decide_seconds"},
                "by_size": measures.by_size(recording),
                "by_team": measures.by_team(recording),
            }
            for name, recording in recordings.items()
        },
    }


def failures_of(texts: Sequence[str], nodes: Sequence[Node]) -> tuple[Failure, ...]:
    """Failures written as NODE@START+SECONDS. Raises `InvalidRequest` for anything else."""
    names = {node.name for node in nodes}
    found = []
    for text in texts:
        node, _, times = text.partition("@")
        start, _, seconds = times.partition("+")
        try:
            failure = Failure(node, float(start), float(seconds))
        except ValueError:
            raise InvalidRequest(f"--fail: {text!r} is not NODE@START+SECONDS, for example node-03@3600+600") from None
        if node not in names:
            raise InvalidRequest(f"--fail: there is no node {node!r}; they are named {min(names)} to {max(names)}")
        if failure.at < 0 or failure.seconds <= 0:
            raise InvalidRequest(f"--fail: {text!r} must start at 0 or later and last longer than 0 seconds")
        found.append(failure)
    return tuple(found)


def policy_of(path: Path | None) -> Policy:
    """The policy in a YAML or JSON file; the default without one. Raises `InvalidRequest` for anything else."""
    if path is None:
        return Policy()
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidRequest(f"--policy: {path} cannot be read ({getattr(error, 'strerror', error)})") from None
    return policy_from_yaml(text, file=str(path))
