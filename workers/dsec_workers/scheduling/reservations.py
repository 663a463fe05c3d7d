"""What is kept for gangs that wait: shadows (the head of line's future place) and pledges (room its victims leave)."""

from collections.abc import Callable
from math import inf

import numpy as np

from dsec_workers.scheduling.decisions import Shadow
from dsec_workers.scheduling.fleet import Bools, Ints
from dsec_workers.scheduling.order import GangClass
from dsec_workers.scheduling.placement import Shape
from dsec_workers.scheduling.shadow import Kept, earliest, kept_devices
from dsec_workers.scheduling.trial import Trial

Place = tuple[float, Ints, Ints]
"""When a gang can start, the node of each member, and the devices that it takes there."""


class Reservations:
    """Keeps `trial.kept` right; `moved` is called when failures that depend on it are out of date."""

    def __init__(self, trial: Trial, moved: Callable[[], None]) -> None:
        self.trial, self._moved = trial, moved
        self._pool_masks: dict[str, Bools] = {}

    def cast_shadow(self, number: int, kind: GangClass) -> bool:
        """Reserve the earliest future place for the head of its resource pool; False when the forecast has none."""
        trial = self.trial
        found = self._earliest(number, kind.pool.mask, kind.least)
        if found is None:
            return False
        self._keep(number, kind, found, trial.now)
        self.kept_moved()
        return True

    def restore_shadow(self, shadow: Shadow, number: int, kind: GangClass) -> None:
        """Take a shadow over from the last cycle, unless its team's quota no longer lets the holder use it.

        Call `renew_all` once all are restored.
        """
        trial, fleet = self.trial, self.trial.fleet
        if not trial.may_keep(kind):
            return
        devices = np.array(
            [fleet.device_number[uuid] for uuid in shadow.devices if uuid in fleet.device_number], np.int64
        )
        whole = len(devices) == len(shadow.devices) == kind.least.total
        nodes = np.unique(fleet.device_node[devices])
        if not kind.least.devices:
            nodes = np.array([fleet.node_number[name] for name in shadow.nodes if name in fleet.node_number], np.int64)
            whole &= len(nodes) == kind.least.members and bool(trial.open_nodes[nodes].all())
        start = shadow.start if whole else -inf  # late by definition: looked for again
        self._keep(number, kind, (start, nodes, devices), shadow.since)

    def keep_cleared(self, number: int, kind: GangClass, avoided: tuple[int, ...]) -> float | None:
        """What gangs leave for one that asks for no device is for it alone; when it starts there, None: never.

        The reservations in `avoided` bind it. The others are looked at again, as is what it was kept before.
        """
        trial = self.trial
        others = [trial.kept[index] for index in avoided]
        found = trial.beside.earliest(kind.least, trial.open_nodes, trial.load, others, trial.against)
        if found is None:
            return None
        mine = [keep for keep in trial.kept if keep.number == number]
        trial.kept = [keep for keep in trial.kept if keep.number != number]
        since = min((keep.since for keep in mine), default=trial.now)
        self._keep(number, kind, (found[0], found[1].nodes, np.empty(0, np.int64)), since)
        self.renew_all()
        self.kept_moved()
        return found[0]

    def pledge(self, number: int, kind: GangClass, devices: Ints) -> None:
        """Room that gangs leave for a waiting gang is for nobody else."""
        nodes = np.unique(self.trial.fleet.device_node[devices])
        self._keep(number, kind, (inf, nodes, devices), self.trial.now, pledge=True)

    def renew_all(self) -> bool:
        """Move shadows earlier where they can be, later only where their devices are late; True when any moved.

        An earlier start of one makes room for another, so passes repeat while something moves, a bounded number of
        times.
        """
        moved = False
        for _ in range(len(self.trial.kept) + 1):
            shadows = [keep for keep in self.trial.kept if not keep.pledge]
            moves = [self._renew(keep) for keep in sorted(shadows, key=lambda k: (k.since, k.run_id))]
            if not any(moves):
                break
            moved = True
        return moved

    def settle(self, number: int, evicted: bool) -> bool:
        """Drop what is no longer kept for anybody once `number` is admitted; True when something kept has moved.

        That is what the gang that starts had, and what a team's quota no longer lets its holder use. The others are
        looked at again when devices of theirs are late, or when somebody leaves earlier than was foreseen.
        """
        trial = self.trial
        if not trial.kept:
            return False
        remaining = [keep for keep in trial.kept if keep.number != number and (keep.pledge or self._may_use(keep))]
        changed = len(remaining) != len(trial.kept)
        trial.kept = remaining
        if changed or evicted or any(self._late(keep) for keep in trial.kept):
            changed |= self.renew_all()
        if changed:
            self.kept_moved()
        return changed

    def kept_moved(self) -> None:
        """Views and failures that depend on what is kept are out of date."""
        trial = self.trial
        trial.free.forget_views()
        trial.soon.forget_views()
        trial.keepers = frozenset(keep.number for keep in trial.kept)
        trial.forget_answers()
        self._moved()

    def _renew(self, keep: Kept) -> bool:
        trial, late = self.trial, keep.start == -inf or self._late(keep)
        before = inf if late else keep.start
        found = self._earliest(keep.number, self._pool_masks[keep.run_id], keep.shape, before=before)
        if found is None:
            if late:
                trial.kept.remove(keep)
            return late
        keep.start, keep.nodes, keep.devices = found
        keep.mask = np.zeros(trial.fleet.size, bool)
        keep.mask[keep.devices] = True
        return True

    def _may_use(self, keep: Kept) -> bool:
        quota = self.trial.quota
        return not keep.shape.total or int(quota.used[keep.team]) + keep.shape.total <= quota.ceiling(
            keep.team, keep.request
        )

    def _late(self, keep: Kept) -> bool:
        trial = self.trial
        if keep.pledge:
            return False
        if (trial.times[keep.devices] > max(keep.start, trial.now)).any():
            return True
        return not trial.beside.in_time(keep, [other for other in trial.kept if other is not keep])

    def _earliest(self, number: int, mask: Bools, shape: Shape, *, before: float = inf) -> Place | None:
        """The first place for gang `number` on devices in `mask` beside what is kept for any other, if before then."""
        trial = self.trial
        others = [keep for keep in trial.kept if keep.number != number]
        if not shape.devices:
            seats = trial.beside.earliest(shape, trial.open_nodes, trial.load, others, trial.against)
            return None if seats is None or seats[0] >= before else (seats[0], seats[1].nodes, np.empty(0, np.int64))
        beside = trial.beside.ready(shape, others) if trial.beside.counts(shape) else None
        left = mask & ~kept_devices(others, trial.fleet.size)
        found = earliest(trial.fleet, trial.times, left, shape, before=before, beside=beside)
        return None if found is None else (found[0], found[1].nodes, np.concatenate(found[2]))

    def _keep(self, number: int, kind: GangClass, place: Place, since: float, *, pledge: bool = False) -> None:
        start, nodes, devices = place
        mask = np.zeros(self.trial.fleet.size, bool)
        mask[devices] = True
        run_id = self.trial.queue[number].run_id
        self.trial.kept.append(
            Kept(
                number=number,
                run_id=run_id,
                resource_pool=kind.pool.label,
                team=kind.team,
                request=kind.request,
                start=start,
                since=since,
                devices=devices,
                mask=mask,
                shape=kind.least,
                nodes=nodes,
                pledge=pledge,
            )
        )
        self._pool_masks[run_id] = kind.pool.mask
