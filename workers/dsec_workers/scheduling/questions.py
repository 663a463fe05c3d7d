"""What would let a waiting gang start? Asked as a cycle ends, for the reasons; nothing here changes the trial."""

from dsec_workers.scheduling.order import GangClass
from dsec_workers.scheduling.placement import fits
from dsec_workers.scheduling.room import view_of
from dsec_workers.scheduling.tenants import nodes_of
from dsec_workers.scheduling.trial import Trial


def fits_now(trial: Trial, number: int, kind: GangClass) -> bool:
    """Whether it would start in room that is free, were it not for something else."""
    if kind.request.devices == 0:
        return trial.host_seats(kind, trial.hosts_without_devices(kind, number)) is not None
    return trial.quota_allows(kind, kind.least.total) and fits_free(trial, kind, trial.avoided(kind, number))


def fits_free(trial: Trial, kind: GangClass, avoided: tuple[int, ...]) -> bool:
    """Whether there is room for the class in free devices without those of the reservations in `avoided`."""
    key = (kind.pool.label, kind.least, avoided)
    if key not in trial.fits:
        trial.fits[key] = fits(trial.fleet, trial.view(trial.free, kind, avoided), kind.least)
    return trial.fits[key]


def fits_without(trial: Trial, run_id: str, number: int, kind: GangClass) -> bool:
    """Whether it would start in free room if that gang were gone."""
    slot, shape = trial.snapshot.slots[run_id], kind.least
    gang = trial.roster.gang(slot)
    back = len(gang.placement.devices) if trial.quota.number[gang.team] == kind.team else 0
    avoided = trial.avoided(kind, number)
    freed = (trial.free.free | (trial.usable & (trial.snapshot.holder == slot))) & trial.mask(kind, avoided)
    hosts = trial.hosts_for(trial.free, avoided).copy()
    hosts.take(gang.request, nodes_of(trial.fleet, gang.placement.members), -1)
    return trial.quota_allows(kind, shape.total - back) and fits(trial.fleet, view_of(trial.fleet, freed, hosts), shape)


def fits_if_opened(trial: Trial, number: int, kind: GangClass) -> bool:
    """Whether it would start in free room if no node were closed."""
    snapshot = trial.snapshot
    unheld = (snapshot.holder < 0) & (snapshot.next_holder < 0) & trial.fleet.device_usable
    avoided = trial.avoided(kind, number)
    opened = (trial.free.free | (unheld & trial.closed[trial.fleet.device_node])) & trial.mask(kind, avoided)
    return fits(trial.fleet, view_of(trial.fleet, opened, trial.hosts_for(trial.free, avoided)), kind.least)
