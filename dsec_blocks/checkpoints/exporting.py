"""A checkpoint outside DSec: arrays as safetensors, everything else as JSON, one pair of files a rank."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import save

from dsec_blocks.checkpoints.commit_log import CommitLog
from dsec_blocks.checkpoints.heads import Commit
from dsec_blocks.gateways import files
from dsec_blocks.model.errors import CheckpointError


def export(log: CommitLog, commit: Commit, directory: Path) -> list[Path]:
    """Write every rank's state of a commit into `directory`; each shard is verified first. Returns the files.

    Raises `Torn`, or `CheckpointError` when the directory holds something already or cannot be written.
    """
    manifest = log.manifest(commit)
    try:
        files.make_directory(directory)
        if any(directory.iterdir()):
            raise CheckpointError(f"{directory} is not empty; name a new directory")
        written = []
        for stored in manifest.shards:
            shard = log.shard(manifest, stored.rank)
            arrays = dict(_arrays("state", shard.state))
            rest = {
                "run": shard.label.run, "step": shard.label.step, "attempt": shard.label.attempt,
                "rank": shard.label.rank, "world_size": shard.label.world_size,
                "state": _plain(shard.state, "state"), "position": _plain(shard.position, "position"),
            }  # fmt: skip
            base = directory / f"rank-{stored.rank:05d}"
            tensors, text = base.with_suffix(".safetensors"), base.with_suffix(".json")
            content = save({name: np.ascontiguousarray(array) for name, array in arrays.items()})
            files.write(tensors, content, at="checkpoint.export.arrays")
            files.write(text, json.dumps(rest, indent=1).encode(), at="checkpoint.export.rest")
            written += [tensors, text]
        return written
    except OSError as error:
        raise CheckpointError(f"{directory} cannot be written: {error.strerror or error}") from error


def _arrays(path: str, value: Any) -> Iterator[tuple[str, np.ndarray]]:
    if isinstance(value, np.ndarray):
        # A type of another package (bfloat16) has no name in the format: its bytes do.
        yield (
            path,
            value.view(np.uint16 if value.dtype.itemsize == 2 else np.uint8) if value.dtype.kind == "V" else value,
        )
    elif isinstance(value, bytes):
        yield path, np.frombuffer(value, dtype=np.uint8)
    elif isinstance(value, dict):
        for key, item in value.items():
            yield from _arrays(f"{path}.{key}", item)
    elif isinstance(value, (list, tuple)):
        for index, item in enumerate(value):
            yield from _arrays(f"{path}.{index}", item)


def _plain(value: Any, path: str) -> Any:
    if isinstance(value, np.ndarray):
        return {"array": path, "dtype": value.dtype.name, "shape": list(value.shape)}
    if isinstance(value, bytes):
        return {"bytes": path}
    if isinstance(value, dict):
        return {str(key): _plain(item, f"{path}.{key}") for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(item, f"{path}.{index}") for index, item in enumerate(value)]
    return value if value is None or isinstance(value, (bool, int, float, str)) else repr(value)
