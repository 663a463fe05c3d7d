"""What one scheduling cycle decides: the values that `plan()` returns and the worker carries out."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, NamedTuple

from dsec_blocks.model.gangs import Placement
from dsec_blocks.model.reasons import Reason


@dataclass(frozen=True, slots=True, kw_only=True)
class Victim:
    """A gang to evict, and what that costs in device-seconds."""

    run_id: str
    cost: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Resize:
    """An elastic gang goes on with other members: checkpoint, then restart at `placement`.

    It is shrunk for the gang `for_run`, or grows into idle devices (None). Cost in device-seconds.
    """

    run_id: str
    placement: Placement
    cost: float
    for_run: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Move:
    """A gang goes on elsewhere: checkpoint, then restart at once at `placement`, which is free. Cost as above."""

    run_id: str
    placement: Placement
    cost: float
    for_run: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Admit:
    """Start a gang at `placement` now.

    With `victims`, `resizes` or `moves`, the devices are promised first (reserved behind their present holders), those
    gangs are told, and the start follows when they have left, shrunk or gone elsewhere. `waits_for` are gangs that were
    leaving anyway and whose devices it takes: also a promise, without a notice. `optimal` is false when the search
    budget ended before the proof.
    """

    run_id: str
    placement: Placement
    victims: tuple[Victim, ...] = ()
    optimal: bool = True
    why: str = ""
    waits_for: tuple[str, ...] = ()
    resizes: tuple[Resize, ...] = ()
    moves: tuple[Move, ...] = ()


class Hold(NamedTuple):
    """Keep a gang waiting. `position` counts from 1 within its resource pool; `eta` is seconds since the epoch.

    `age` and the `others` are the summands of its rank (weight × factor); the others are those of its whole class.
    """

    run_id: str
    reason: Reason
    position: int | None = None
    eta: float | None = None
    age: float = 0.0
    others: tuple[float, ...] = ()

    @property
    def factors(self) -> Mapping[str, float]:
        """The summands of its rank by name; the last is there with time sharing."""
        if not self.others:
            return {}
        first, *rest = self.others
        names = ("share", "gap", "depth", "small", "level")
        return {"priority": first, "age": self.age, **dict(zip(names, rest, strict=False))}


@dataclass(frozen=True, slots=True, kw_only=True)
class Shadow:
    """The head of line's sticky reservation on future capacity in one resource pool.

    `start` is never moved later because of a passer; `devices` are what it will take then. `nodes` says where each
    member of a gang without devices will be.
    """

    run_id: str
    resource_pool: str
    start: float
    devices: tuple[str, ...]
    since: float
    nodes: tuple[str, ...] = ()

    def to_json(self) -> dict[str, Any]:
        """JSON-ready fields; `Shadow.from_json` is the inverse.

        Without `nodes` where there are none: a worker of before they were there can take over.
        """
        written = {**asdict(self), "devices": list(self.devices), "nodes": list(self.nodes)}
        return written if self.nodes else {name: value for name, value in written.items() if name != "nodes"}

    @classmethod
    def from_json(cls, fields: Mapping[str, Any]) -> "Shadow":
        """The shadow that `to_json` wrote."""
        places = {name: tuple(fields.get(name, ())) for name in ("devices", "nodes")}
        return cls(**{**fields, **places})


@dataclass(frozen=True, slots=True, kw_only=True)
class Recall:
    """A gang is to leave now, so that `for_run`, which waits, can start at `start`; cost in device-seconds.

    It passed that head of line on condition, or gives way by priority to a gang that asks for no device. Nobody is
    admitted for it: the head's other devices are still held, by gangs whose contracts end in time; and what a gang
    without devices waits for is kept for it until it is there.
    """

    run_id: str
    for_run: str
    start: float
    cost: float
    passed: bool = True
    """Whether it passed that gang on condition; else it gives way by priority, with all others that do so for it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """All decisions of one cycle, in the order in which they are to be carried out."""

    admits: tuple[Admit, ...] = ()
    holds: Sequence[Hold] = ()
    shadows: tuple[Shadow, ...] = ()
    growths: tuple[Resize, ...] = ()
    """Running elastic gangs that grow into what nobody else needs."""
    recalls: tuple[Recall, ...] = ()
    """Who is told to leave for a gang that is admitted later."""
    lifted: tuple[str, ...] = ()
    """Gangs admitted by the one lift of time sharing: their attained time counts anew."""
    policy_version: str = ""
    conditional: Mapping[str, float] = field(default_factory=dict)
    """Passers admitted this cycle on condition: run id → the time until which they may stay."""
