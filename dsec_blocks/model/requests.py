"""The gang request: what one flow run needs, parsed and checked once, at the edge.

The same fields come from the form in the Prefect UI, from `prefect.yaml`, and from `@gang(...)`; `parse_request` is
the only reader of all three.
"""

import dataclasses
import re
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from enum import StrEnum
from fractions import Fraction
from typing import Any, TypeVar

from dsec_blocks.model.errors import InvalidRequest
from dsec_blocks.model.units import parse_duration, parse_memory


class Kind(StrEnum):
    """What a gang does; decides who may be evicted (never inference) and how liveness is judged."""

    TRAINING = "training"
    INFERENCE = "inference"
    BATCH = "batch"
    INTERACTIVE = "interactive"


class Sharing(StrEnum):
    """How much of a card one device of the request is.

    `auto`: what its memory needs, whole cards first. `slice`: a part with memory of its own (a MIG profile or a
    fraction). `time-slice`: a part of the card's time.
    """

    AUTO = "auto"
    WHOLE = "whole"
    SLICE = "slice"
    TIME_SLICE = "time-slice"


class Topology(StrEnum):
    """How tightly the gang's devices must sit together.

    `node-domain`: each member's devices share one NVLink domain. `domain`: all devices of the gang do. `rack`, `block`,
    `zone`: all members lie in one. `spread`: no two members in the same rack. `preferred`: the tightest that is free.
    """

    PREFERRED = "preferred"
    NODE_DOMAIN = "node-domain"
    DOMAIN = "domain"
    RACK = "rack"
    BLOCK = "block"
    ZONE = "zone"
    SPREAD = "spread"


_Choice = TypeVar("_Choice", bound=StrEnum)

MAX_NODES = 4096
MAX_DEVICES_PER_NODE = 64
MAX_PRIORITY = 1000
MAX_CPUS = 4096
WHOLE_MILLI = 1000
_MIG_SLICES = 7
_PROFILE = re.compile(r"(?P<slices>[1-7])g\.(?P<memory>\d+)gb(\+me)?")


@dataclass(frozen=True, slots=True, kw_only=True)
class GangRequest:
    """What a flow run needs, admitted all or nothing: `nodes` × `devices_per_node`.

    `min_nodes` is the smallest shape it accepts (equal to `nodes` unless elastic). No devices make a CPU-only gang.
    `grace_seconds` is how long an eviction waits for the snapshot; `max_runtime_seconds` is enforced, and what lets
    the gang pass a waiting head of line. `gpu_model` may name several that will do ("H100|H200"). `share` is the part
    of a card that each device is ("3g.40gb", "0.5"); `cpus` and `memory_bytes` are for each member.
    """

    nodes: int = 1
    min_nodes: int | None = None
    devices_per_node: int = 0
    gpu_model: str | None = None
    gpu_memory_bytes: int | None = None
    sharing: Sharing = Sharing.AUTO
    share: str | None = None
    cpus: float | None = None
    memory_bytes: int | None = None
    topology: Topology = Topology.PREFERRED
    priority: int = 0
    kind: Kind = Kind.TRAINING
    preemptible: bool = True
    grace_seconds: float = 30.0
    max_runtime_seconds: float | None = None
    inputs: tuple[str, ...] = ()
    image: str | None = None
    env: Mapping[str, str] = field(default_factory=dict)

    @property
    def devices(self) -> int:
        """Devices of the full shape."""
        return self.nodes * self.devices_per_node

    @property
    def gpu_models(self) -> tuple[str, ...]:
        """The models that will do; empty when any will."""
        return tuple(filter(None, (model.strip() for model in (self.gpu_model or "").split("|"))))

    @property
    def share_milli(self) -> int:
        """Thousandths of a card that each device is; a MIG profile counts by its compute slices of seven."""
        return WHOLE_MILLI if self.share is None else parse_share(self.share)

    @property
    def evictable(self) -> bool:
        """Whether any gang may ever evict this one."""
        return self.preemptible and self.kind is not Kind.INFERENCE

    def describe(self) -> str:
        """The shape in a few words, as reasons print it: "2×8 H100" or "CPU only"."""
        if self.devices == 0:
            return f"{self.nodes} CPU-only members" if self.nodes > 1 else "CPU only"
        shape = f"{self.nodes}×{self.devices_per_node}" if self.nodes > 1 else f"{self.devices_per_node}"
        model = " or ".join(self.gpu_models) or ("GPU" if self.devices == 1 else "GPUs")
        return f"{shape} {model}" if self.share is None else f"{shape} × {self.share} of {model}"

    def to_json(self) -> dict[str, Any]:
        """JSON-ready fields; `GangRequest.from_json` is the inverse."""
        fields = {f.name: getattr(self, f.name) for f in dataclasses.fields(self)}
        return {**fields, "inputs": list(self.inputs), "env": dict(self.env)}

    @classmethod
    def from_json(cls, fields: Mapping[str, Any]) -> "GangRequest":
        """The request that `to_json` wrote. Unknown fields (written by a newer DSec) are refused by the constructor."""
        typed = dict(fields)
        typed["sharing"], typed["topology"], typed["kind"] = (
            Sharing(typed["sharing"]), Topology(typed["topology"]), Kind(typed["kind"]),
        )  # fmt: skip
        typed["inputs"] = tuple(typed["inputs"])
        return cls(**typed)


REQUEST_VARIABLES = (
    "nodes", "min_nodes", "devices_per_node", "gpu_model", "gpu_memory", "sharing", "share", "cpus", "memory",
    "topology", "priority", "kind", "preemptible", "grace", "max_runtime", "inputs", "image", "env",
)  # fmt: skip
"""The job variables that make up a gang request, in the order of the form."""


def parse_request(variables: Mapping[str, Any]) -> GangRequest:
    """The gang request in a run's job variables; other job variables are ignored, None means the default.

    `gpu_memory` is text with a unit, `grace` and `max_runtime` are seconds or text with a unit.

    Raises `InvalidRequest`, naming the field and a value that would do.
    """
    given = {k: v for k, v in variables.items() if k in REQUEST_VARIABLES and v is not None}
    nodes = _whole(given, "nodes", 1, low=1, high=MAX_NODES)
    min_nodes = _whole(given, "min_nodes", None, low=1, high=MAX_NODES)
    if min_nodes is not None and min_nodes > nodes:
        raise InvalidRequest(f"min_nodes: {min_nodes} is more than nodes ({nodes}); lower it or raise nodes")
    memory = given.get("gpu_memory")
    env = given.get("env", {})
    if not isinstance(env, Mapping):
        raise InvalidRequest(f"env: {env!r} is not a mapping of names to values")
    inputs = given.get("inputs", ())
    if not isinstance(inputs, (list, tuple)) or not all(isinstance(uri, str) for uri in inputs):
        raise InvalidRequest(f"inputs: {inputs!r} is not a list of URIs")
    max_runtime = given.get("max_runtime")
    request = GangRequest(
        nodes=nodes,
        min_nodes=min_nodes,
        devices_per_node=_whole(given, "devices_per_node", 0, low=0, high=MAX_DEVICES_PER_NODE),
        gpu_model=_models(given),
        gpu_memory_bytes=None if memory is None else parse_memory(str(memory), field="gpu_memory"),
        sharing=_choice(given, "sharing", Sharing, Sharing.AUTO),
        share=_share(given),
        cpus=_cpus(given),
        memory_bytes=None if given.get("memory") is None else parse_memory(str(given["memory"]), field="memory"),
        topology=_choice(given, "topology", Topology, Topology.PREFERRED),
        priority=_whole(given, "priority", 0, low=0, high=MAX_PRIORITY),
        kind=_choice(given, "kind", Kind, Kind.TRAINING),
        preemptible=_flag(given, "preemptible", True),
        grace_seconds=parse_duration(given.get("grace", 30.0), field="grace"),
        max_runtime_seconds=None if max_runtime is None else parse_duration(max_runtime, field="max_runtime"),
        inputs=tuple(inputs),
        image=_text(given, "image"),
        env={str(k): str(v) for k, v in env.items() if v is not None},
    )
    if request.gpu_memory_bytes == 0:
        raise InvalidRequest(f"gpu_memory: {memory!r} is no memory at all; leave it out for any card")
    if request.max_runtime_seconds == 0:
        raise InvalidRequest(f"max_runtime: {max_runtime!r} leaves no time to run; leave it out for no limit")
    if request.devices == 0 and (request.gpu_model or request.gpu_memory_bytes):
        raise InvalidRequest("devices_per_node: 0, but gpu_model or gpu_memory is set; ask for at least one device")
    _check_share(request)
    return request


def parse_share(text: str) -> int:
    """Thousandths of a card in "3g.40gb", "0.5", "50%" or "1/2".

    Raises `InvalidRequest`.
    """
    profile = _PROFILE.fullmatch(text.strip().lower())
    if profile:
        return min(WHOLE_MILLI, int(profile["slices"]) * WHOLE_MILLI // _MIG_SLICES)
    value = 0.0
    with suppress(ValueError, ZeroDivisionError, OverflowError):
        value = float(Fraction(text[:-1].strip()) / 100 if text.endswith("%") else Fraction(text.strip()))
    milli = round(value * WHOLE_MILLI)
    if not 1 <= milli <= WHOLE_MILLI:
        raise InvalidRequest(f"share: {text!r} is no part of a card; write 0.5, 50%, 1/2, or a profile such as 3g.40gb")
    return milli


def _check_share(request: GangRequest) -> None:
    """Refuse a share that says two things, or too little to know what would do."""
    if request.share is None:
        if request.sharing in (Sharing.SLICE, Sharing.TIME_SLICE):
            example = "1g.10gb" if request.sharing is Sharing.SLICE else "1/4"
            raise InvalidRequest(f"sharing: {request.sharing} needs to know which part; write share: {example}")
        return
    parse_share(request.share)
    is_profile = _PROFILE.fullmatch(request.share) is not None
    if request.devices == 0:
        raise InvalidRequest(
            f"share: {request.share} of a card, but devices_per_node is 0; ask for at least one device"
        )
    if request.sharing is Sharing.WHOLE:
        raise InvalidRequest(f"share: {request.share} of a card, but sharing is whole; leave one of them out")
    if request.sharing is Sharing.SLICE and not is_profile:
        raise InvalidRequest(f"share: {request.share} is no slice; write a profile such as 1g.10gb, or sharing: auto")
    if request.sharing is Sharing.TIME_SLICE and is_profile:
        raise InvalidRequest(f"share: {request.share} is a slice, but sharing is time-slice; write a part such as 1/4")


def _share(given: Mapping[str, Any]) -> str | None:
    text = _text(given, "share")
    return None if text is None else text.strip().lower()


def _models(given: Mapping[str, Any]) -> str | None:
    """One model, several joined by "|", or a list of them."""
    value = given.get("gpu_model")
    if isinstance(value, (list, tuple)) and value and all(isinstance(model, str) for model in value):
        value = "|".join(value)
    text = _text({"gpu_model": value}, "gpu_model")
    if text is not None and not all(model.strip() for model in text.split("|")):
        raise InvalidRequest(f"gpu_model: {text!r} has an empty name; write one model, or several as H100|H200")
    return text


def _cpus(given: Mapping[str, Any]) -> float | None:
    value = given.get("cpus")
    if value is None:
        return None
    if isinstance(value, str):
        with suppress(ValueError):
            value = float(value)
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 < value <= MAX_CPUS:
        raise InvalidRequest(f"cpus: {value!r} is not a number of processors from 0.001 to {MAX_CPUS}")
    return round(float(value), 3)


def _whole(given: Mapping[str, Any], name: str, default: Any, *, low: int, high: int) -> Any:
    value = given.get(name, default)
    if value is default:
        return default
    if isinstance(value, str):
        with suppress(ValueError):
            value = int(value)
    if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
        raise InvalidRequest(f"{name}: {value!r} is not a whole number from {low} to {high}")
    return value


def _flag(given: Mapping[str, Any], name: str, default: bool) -> bool:
    value = given.get(name, default)
    if not isinstance(value, bool):
        raise InvalidRequest(f"{name}: {value!r} is neither true nor false")
    return value


def _text(given: Mapping[str, Any], name: str) -> str | None:
    value = given.get(name)
    if value is not None and not isinstance(value, str):
        raise InvalidRequest(f"{name}: {value!r} is not text")
    return value or None


def _choice(given: Mapping[str, Any], name: str, options: type[_Choice], default: _Choice) -> _Choice:
    try:
        return options(given.get(name, default))
    except ValueError:
        raise InvalidRequest(f"{name}: {given[name]!r} is not one of {', '.join(options)}") from None
