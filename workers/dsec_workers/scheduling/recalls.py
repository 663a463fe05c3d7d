"""Passers that are called back: told to leave for the head of line before the head can be admitted.

A passer may stay until the head's start S. Who holds the head's other devices by contract leaves at S and not before,
so until then the head cannot be admitted, and a passer that is told only then makes it wait one hand-over longer.
Hence each passer is told at S − checkpoint − grace, whatever the others do.

This is for a start that is certain. Where a device of the head's place is held by a gang without a contract, S is a
guess, and devices would lie idle for it: there, passers leave once the head can be admitted (see `Rights`).
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from math import inf

import numpy as np

from dsec_workers.scheduling.cost import UNITS, hand_over_seconds
from dsec_workers.scheduling.decisions import Recall, Shadow
from dsec_workers.scheduling.fleet import Bools
from dsec_workers.scheduling.holders import Slots
from dsec_workers.scheduling.options import How, Option
from dsec_workers.scheduling.order import GangClass
from dsec_workers.scheduling.policy import Policy
from dsec_workers.scheduling.shadow import Kept
from dsec_workers.scheduling.snapshot import RunningGang
from dsec_workers.scheduling.trial import Trial


def call_back(trial: Trial, slots: Slots, class_of: Mapping[int, GangClass]) -> list[Recall]:
    """Whom the holders of shadows call back now, which is entered in the trial; `class_of` is by gang number."""
    passing: Bools = slots.there & ~np.isnan(slots.conditional_until)
    if not passing.any():
        return []
    certain = np.append(slots.evicting | passing | ~np.isnan(slots.max_runtime), True)
    found = []
    for keep in sorted(trial.kept, key=lambda kept: (kept.since, kept.run_id)):
        if keep.pledge:
            continue
        kind = class_of[keep.number]
        by, behind = trial.snapshot.holder[keep.devices], trial.snapshot.next_holder[keep.devices]
        on = [slot for slot in np.unique(by[by >= 0]).tolist() if passing[slot]]
        others = [other for other in trial.kept if other is not keep]
        on += trial.beside.in_the_way(keep, others, passing, on)
        relied = trial.beside.relied_on(keep)
        if not (certain[by] & certain[behind]).all() or not certain[relied].all() or not _limits_allow(trial, kind):
            continue
        start = max(_start(trial, slots, keep), kind.backing_off_until or -inf, keep.start if len(relied) else -inf)
        for slot in on:
            spared = trial.roster.gang(slot).run_id in kind.evicted_for
            if trial.roster.movable[slot] and not spared and _is_due(trial, slots, slot, start):
                found.append(_told(trial, slot, keep, start))
    if found:
        trial.forget_answers()
    return found


def due_times(running: Iterable[RunningGang], shadows: Sequence[Shadow], policy: Policy, now: float) -> Iterator[float]:
    """Times to come at which a passer may have to be told; seconds since the epoch."""
    for gang in running:
        if gang.conditional_until is None or gang.evicting:
            continue
        mine = set(gang.placement.devices)
        starts = {shadow.start for shadow in shadows if not mine.isdisjoint(shadow.devices)}
        for start in starts | {gang.conditional_until}:
            if (due := start - hand_over_seconds(gang, policy)) > now:
                yield due


def _limits_allow(trial: Trial, kind: GangClass) -> bool:
    return kind.ordered or trial.may_keep(kind)


def _start(trial: Trial, slots: Slots, keep: Kept) -> float:
    """When the last of the head's devices is free, by contracts and conditions; who has been told leaves anyway."""
    by = trial.snapshot.holder[keep.devices]
    leaving = np.append(slots.evicting, False)[by]
    return float(np.where(leaving, -inf, trial.times[keep.devices]).max(initial=-inf))


def _is_due(trial: Trial, slots: Slots, slot: int, start: float) -> bool:
    """Whether the passer would be there still at `start` if it were told any later."""
    if slots.started_at[slot] + slots.max_runtime[slot] <= start:
        return False  # its own contract ends in time
    return bool(trial.now >= start - trial.roster.hand_over[slot])


def _told(trial: Trial, slot: int, keep: Kept, start: float) -> Recall:
    roster = trial.roster
    option = Option(slot=slot, how=How.EVICT, cost=roster.cost(slot), released=int(roster.devices[slot]))
    trial.make_way(option, trial.held_by(slot))
    return Recall(run_id=roster.gang(slot).run_id, for_run=keep.run_id, start=start, cost=option.cost / UNITS)
