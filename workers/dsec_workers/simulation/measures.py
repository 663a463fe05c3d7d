"""Figures of a replay: waits, completion times, use, fairness, lost work.

wait = completion time − duration, so that every second an interruption costs counts as waiting, under any policy.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from dsec_workers.simulation.jobs import Job
from dsec_workers.simulation.recording import Outcome, Recording

SIZES: tuple[tuple[str, int, int], ...] = (("1", 1, 1), ("2-4", 2, 4), ("5-8", 5, 8), (">8", 9, 10**9))
"""Classes of jobs by devices: name, from, to."""
SLOWDOWN_FLOOR_SECONDS = 60.0
"""A job shorter than this counts as this long in its slowdown (bounded slowdown)."""


def size_of(job: Job) -> str:
    """The job's size class; "cpu" without devices."""
    return next((name for name, low, high in SIZES if low <= job.request.devices <= high), "cpu")


def by_size(recording: Recording) -> dict[str, dict[str, float]]:
    """Waits and completion times by size class, smallest first."""
    order = ["cpu", *(name for name, _, _ in SIZES)]
    found = _grouped(recording, lambda outcome: size_of(outcome.job))
    return {name: found[name] for name in order if name in found}


def by_team(recording: Recording) -> dict[str, dict[str, float]]:
    """The same by team."""
    return dict(sorted(_grouped(recording, lambda outcome: outcome.job.team).items()))


def figures(recording: Recording) -> dict[str, Any]:
    """One flat row for tables and JSON; times in seconds, lost work in device-hours.

    `evictions` are all times that a job was told to leave, `resizes` those after which it went on at another size.
    """
    ended = [outcome for outcome in recording.outcomes.values() if outcome.finished_at is not None]
    return {
        "jobs": len(recording.outcomes),
        "finished": len(ended),
        "refused": sum(outcome.refused is not None for outcome in recording.outcomes.values()),
        **_times(ended),
        "utilisation": utilisation(recording),
        "fragmented": fragmented(recording),
        "evictions": sum(outcome.evictions for outcome in recording.outcomes.values()),
        "lost_device_hours": sum(outcome.lost_device_seconds for outcome in recording.outcomes.values()) / 3600,
        "resizes": sum(outcome.resizes for outcome in recording.outcomes.values()),
        "resize_device_hours": sum(outcome.resize_device_seconds for outcome in recording.outcomes.values()) / 3600,
        "fairness": fairness(recording),
        "longest_queue": max((sample.waiting for sample in recording.samples), default=0),
        "cycles": recording.cycles,
        "decide_seconds": recording.decide_seconds,
    }


def utilisation(recording: Recording) -> float:
    """Part of all devices that was held while jobs were still arriving (the drain afterwards says nothing)."""
    return _mean_over_time(recording, lambda sample: sample.busy) / max(1, recording.devices)


def fragmented(recording: Recording) -> float:
    """Part of all devices that was free on nodes partly busy, while anybody waited."""
    return _mean_over_time(recording, lambda sample: sample.fragmented, only_waiting=True) / max(1, recording.devices)


def fairness(recording: Recording) -> float:
    """Jain's index of the teams' mean bounded slowdowns, 0 to 1: 1 when every team is slowed down alike."""
    sums: dict[str, list[float]] = {}
    for outcome in recording.outcomes.values():
        if outcome.jct is not None:
            floor = max(SLOWDOWN_FLOOR_SECONDS, outcome.job.duration)
            sums.setdefault(outcome.job.team, []).append(max(1.0, outcome.jct / floor))
    return jain([float(np.mean(values)) for values in sums.values()])


def jain(values: Sequence[float]) -> float:
    """(Σx)² ÷ (n·Σx²), Jain et al. 1984."""
    numbers = np.array(values, float)
    squares = float((numbers**2).sum())
    return 1.0 if squares == 0 else float(numbers.sum()) ** 2 / (len(numbers) * squares)


def _grouped(recording: Recording, key: Callable[[Outcome], str]) -> dict[str, dict[str, float]]:
    groups: dict[str, list[Outcome]] = {}
    for outcome in recording.outcomes.values():
        if outcome.finished_at is not None:
            groups.setdefault(key(outcome), []).append(outcome)
    return {name: {"jobs": len(outcomes), **_times(outcomes)} for name, outcomes in groups.items()}


def _times(outcomes: Iterable[Outcome]) -> Mapping[str, float]:
    waits = np.array([outcome.wait for outcome in outcomes if outcome.wait is not None], float)
    jcts = np.array([outcome.jct for outcome in outcomes if outcome.jct is not None], float)
    if not len(waits):
        return dict.fromkeys(("mean_wait", "p50_wait", "p95_wait", "max_wait", "mean_jct", "p95_jct"), 0.0)
    return {
        "mean_wait": float(waits.mean()),
        "p50_wait": float(np.percentile(waits, 50)),
        "p95_wait": float(np.percentile(waits, 95)),
        "max_wait": float(waits.max()),
        "mean_jct": float(jcts.mean()),
        "p95_jct": float(np.percentile(jcts, 95)),
    }


def _mean_over_time(recording: Recording, value: Callable[[Any], float], *, only_waiting: bool = False) -> float:
    last_arrival = max((outcome.job.submit_at for outcome in recording.outcomes.values()), default=0.0)
    total = span = 0.0
    for sample, after in zip(recording.samples, recording.samples[1:], strict=False):
        if sample.at >= last_arrival:
            break
        if only_waiting and not sample.waiting:
            continue
        seconds = min(after.at, last_arrival) - sample.at
        total += value(sample) * seconds
        span += seconds
    return total / span if span else 0.0
