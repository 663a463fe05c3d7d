"""The schedulers that a replay can be asked for, by name."""

from collections.abc import Mapping, Sequence

from dsec_blocks.model.devices import Node
from dsec_blocks.model.errors import InvalidRequest
from dsec_blocks.model.teams import Team
from dsec_workers.scheduling import Policy
from dsec_workers.simulation.baselines import Easy, Fifo, KueueLike, TiresiasLike
from dsec_workers.simulation.beginning import Beginning
from dsec_workers.simulation.overheads import Overheads
from dsec_workers.simulation.production import Production
from dsec_workers.simulation.schedulers import Scheduler

BASELINES = ("fifo", "easy", "kueue-like", "tiresias-like", "tiresias-like-our-levels")


def baseline(name: str, teams: Mapping[str, Team]) -> Scheduler:
    """A baseline by name. Raises `InvalidRequest` for another name."""
    if name == "fifo":
        return Fifo()
    if name == "easy":
        return Easy()
    if name == "kueue-like":
        return KueueLike(teams)
    if name == "tiresias-like":
        return TiresiasLike()
    if name == "tiresias-like-our-levels":
        return TiresiasLike(Policy().level_device_seconds, name=name)
    raise InvalidRequest(f"--compare: {name!r} is not a scheduler to compare with; there are {', '.join(BASELINES)}")


def production(
    nodes: Sequence[Node],
    teams: Mapping[str, Team],
    policy: Policy,
    *,
    overheads: Overheads,
    name: str = "dsec",
    beginning: Beginning | None = None,
) -> Scheduler:
    """The pool's own scheduler under `policy`; from `beginning`, it knows what the pool knew then."""
    return Production(nodes, teams, policy, overheads=overheads, name=name, beginning=beginning)


def equal_teams(names: Sequence[str], devices: int) -> dict[str, Team]:
    """Where a trace states no quotas, every team is entitled to an equal part."""
    distinct = sorted(set(names))
    return {name: Team(name=name, nominal_devices=devices // max(1, len(distinct))) for name in distinct}
