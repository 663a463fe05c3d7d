"""A choice of who makes room, as the decisions that the worker carries out."""

from dataclasses import replace

from dsec_workers.scheduling.cost import UNITS
from dsec_workers.scheduling.decisions import Move, Resize, Victim
from dsec_workers.scheduling.options import How
from dsec_workers.scheduling.placement import placement_of
from dsec_workers.scheduling.trial import Trial
from dsec_workers.scheduling.victims import Chosen


def evicted(trial: Trial, chosen: Chosen) -> tuple[Victim, ...]:
    """Those that go back in line."""
    return tuple(
        Victim(run_id=trial.roster.gang(option.slot).run_id, cost=option.cost / UNITS)
        for option in chosen.options
        if option.how is How.EVICT
    )


def shrunk(trial: Trial, chosen: Chosen, for_run: str) -> tuple[Resize, ...]:
    """Those that go on with fewer members."""
    found = []
    for option in chosen.options:
        if option.how is How.SHRINK:
            gang = trial.roster.gang(option.slot)
            left = tuple(m for index, m in enumerate(gang.placement.members) if index not in option.gone)
            found.append(
                Resize(
                    run_id=gang.run_id,
                    placement=replace(gang.placement, members=left),
                    cost=option.cost / UNITS,
                    for_run=for_run,
                )
            )
    return tuple(found)


def moved(trial: Trial, chosen: Chosen, for_run: str) -> tuple[Move, ...]:
    """Those that go elsewhere."""
    prices = {option.slot: option.cost / UNITS for option in chosen.options}
    return tuple(
        Move(
            run_id=trial.roster.gang(home.slot).run_id,
            placement=placement_of(trial.fleet, home.seats, home.devices),
            cost=prices[home.slot],
            for_run=for_run,
        )
        for home in chosen.homes
    )
