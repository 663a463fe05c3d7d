"""One rank's part of a checkpoint as one self-describing, self-verifying file.

    magic · length of the header · header (JSON) · the arrays' bytes, one after another · xxh3-128 of all before

The header holds the tree that the user saved, with a reference where each array stood. Nothing is pickled: a
checkpoint outlives the code that wrote it, and reading one must not run anything.
"""

import importlib
import json
import random
import sys
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, cast

import numpy as np
import xxhash

from dsec_blocks.model.errors import CheckpointError

MAGIC = b"DSECSHD1"
_TAG = "$"


class Torn(CheckpointError):
    """A shard or manifest that is not whole: missing, cut short, or with another content than was committed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardLabel:
    """Which part of which checkpoint a shard is. `step` counts finished steps: the run resumes at that index."""

    run: str
    step: int
    attempt: int
    rank: int
    world_size: int
    started_at: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Shard:
    """A decoded shard: what was saved, where in its data the rank was, and the global random states."""

    label: ShardLabel
    state: Any
    position: Any
    randomness: Mapping[str, Any]


def encode(label: ShardLabel, state: Any, *, position: Any, randomness: Mapping[str, Any]) -> Iterator[bytes]:
    """The bytes of a shard, piece by piece; arrays are not copied as a whole.

    Raises `CheckpointError` for a value that is neither an array, bytes, a number, text nor a container of these.
    """
    arrays: list[np.ndarray] = []
    header = {
        "label": asdict(label),
        "state": _flatten(state, arrays, "state"),
        "position": _flatten(position, arrays, "position"),
        "randomness": _flatten(dict(randomness), arrays, "randomness"),
    }
    header["arrays"] = [{"dtype": _dtype_name(a.dtype), "shape": list(a.shape), "size": a.nbytes} for a in arrays]
    text = json.dumps(header).encode()
    digest = xxhash.xxh3_128()
    pieces: list[bytes] = [MAGIC, len(text).to_bytes(8, "big"), text]
    for piece in (*pieces, *(_raw(a) for a in arrays)):
        digest.update(piece)
        yield piece
    yield digest.digest()


def decode(content: bytes) -> Shard:
    """The shard in `content`. Raises `Torn` when it is not whole."""
    start = len(MAGIC) + 8
    if len(content) < start + 16 or not content.startswith(MAGIC):
        raise Torn("not a whole shard: it is cut short or something else")
    if xxhash.xxh3_128(memoryview(content)[:-16]).digest() != content[-16:]:
        raise Torn("the shard's content does not match its own checksum")
    end = start + int.from_bytes(content[len(MAGIC) : start], "big")
    header = json.loads(content[start:end])
    arrays, offset = [], end
    for entry in header["arrays"]:
        raw = np.frombuffer(content, dtype=np.uint8, count=entry["size"], offset=offset)
        arrays.append(raw.copy().view(_dtype(entry["dtype"])).reshape(entry["shape"]))
        offset += entry["size"]
    return Shard(
        label=ShardLabel(**header["label"]),
        state=_restore(header["state"], arrays),
        position=_restore(header["position"], arrays),
        randomness=_restore(header["randomness"], arrays),
    )


def read_label(path: Path) -> ShardLabel:
    """Which shard a file is, from its header alone. Raises `Torn`."""
    with path.open("rb") as file:
        start = file.read(len(MAGIC) + 8)
        header = file.read(int.from_bytes(start[len(MAGIC) :], "big")) if start.startswith(MAGIC) else b""
    try:
        return ShardLabel(**json.loads(header)["label"])
    except (ValueError, KeyError, TypeError):
        raise Torn(f"{path} is not a whole shard") from None


def global_randomness() -> dict[str, Any]:
    """The states of the random generators that code uses without naming them."""
    states: dict[str, Any] = {"python": random.getstate(), "numpy": np.random.get_state()}
    torch = sys.modules.get("torch")
    if torch is not None:
        states["torch"] = torch.get_rng_state().numpy()
        if torch.cuda.is_available() and torch.cuda.is_initialized():
            states["torch_cuda"] = [state.numpy() for state in torch.cuda.get_rng_state_all()]
    return states


def set_global_randomness(states: Mapping[str, Any]) -> None:
    """Continue the random sequences where `global_randomness` saw them."""
    if "python" in states:
        random.setstate(states["python"])
    if "numpy" in states:
        np.random.set_state(states["numpy"])
    if "torch" in states:
        torch = importlib.import_module("torch")
        torch.set_rng_state(torch.from_numpy(states["torch"]))
        if "torch_cuda" in states and torch.cuda.is_available():
            torch.cuda.set_rng_state_all([torch.from_numpy(state) for state in states["torch_cuda"]])


def _flatten(value: Any, arrays: list[np.ndarray], path: str) -> Any:
    if value is None or isinstance(value, (bool, str)) or type(value) in (int, float):
        return value
    if isinstance(value, (bytes, bytearray)):
        arrays.append(np.frombuffer(bytes(value), dtype=np.uint8))
        return {_TAG: ["bytes", len(arrays) - 1]}
    if isinstance(value, np.random.Generator):
        state = _flatten(value.bit_generator.state, arrays, path)
        return {_TAG: ["generator", type(value.bit_generator).__name__, state]}
    if type(value) is tuple:
        return {_TAG: ["tuple", [_flatten(item, arrays, f"{path}[{i}]") for i, item in enumerate(value)]]}
    if isinstance(value, list):
        return [_flatten(item, arrays, f"{path}[{i}]") for i, item in enumerate(value)]
    if isinstance(value, Mapping):
        items = [
            [_flatten(key, arrays, path), _flatten(item, arrays, f"{path}[{key!r}]")] for key, item in value.items()
        ]
        if all(isinstance(key, str) and key != _TAG for key in value):
            return dict(items)
        return {_TAG: ["dict", items]}
    return {_TAG: ["array", _as_array(value, arrays, path)]}


def _as_array(value: Any, arrays: list[np.ndarray], path: str) -> int:
    if hasattr(value, "detach"):
        value = value.detach().cpu()
    has_array = isinstance(value, np.generic) or hasattr(value, "__array__")
    array = np.asarray(value) if has_array and not isinstance(value, tuple) else None
    if array is None or array.dtype.hasobject or array.dtype.names:
        raise CheckpointError(
            f"{path}: a {type(value).__name__} cannot be saved; save arrays, bytes, numbers, text and dicts, lists or "
            "tuples of these (for a JAX tree: jax.tree.leaves)"
        )
    arrays.append(np.ascontiguousarray(array).reshape(array.shape))
    return len(arrays) - 1


def _restore(value: Any, arrays: list[np.ndarray]) -> Any:
    if isinstance(value, list):
        return [_restore(item, arrays) for item in value]
    if not isinstance(value, dict):
        return value
    if _TAG not in value:
        return {key: _restore(item, arrays) for key, item in value.items()}
    kind, *rest = value[_TAG]
    if kind == "array":
        return arrays[rest[0]]
    if kind == "bytes":
        return arrays[rest[0]].tobytes()
    if kind == "tuple":
        return tuple(_restore(item, arrays) for item in rest[0])
    if kind == "dict":
        return {_restore(key, arrays): _restore(item, arrays) for key, item in rest[0]}
    if kind == "generator":
        bits = getattr(np.random, rest[0])()
        bits.state = _restore(rest[1], arrays)
        return np.random.Generator(bits)
    raise CheckpointError(f"the shard holds a {kind!r}, which this version cannot read; upgrade DSec")


def _raw(array: np.ndarray) -> bytes:
    """The array's own memory, not a copy: whatever takes bytes takes it."""
    return cast(bytes, array.reshape(-1).view(np.uint8).data)


def _dtype_name(dtype: np.dtype) -> str:
    """Numpy writes the types of other packages (bfloat16) as void; their own name finds them again."""
    return dtype.name if dtype.kind == "V" else dtype.str


def _dtype(name: str) -> Any:
    try:
        return np.dtype(name)
    except TypeError:  # bfloat16 and its like
        return np.dtype(getattr(importlib.import_module("ml_dtypes"), name))
