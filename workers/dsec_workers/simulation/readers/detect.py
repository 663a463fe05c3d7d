"""Which format a trace file has: told by its first line."""

import csv
from collections.abc import Callable
from pathlib import Path
from typing import Protocol

from dsec_blocks.model.errors import InvalidRequest
from dsec_workers.simulation.jobs import Trace
from dsec_workers.simulation.readers import alibaba, philly, plain, pollux
from dsec_workers.simulation.readers.table import opened


class _Reader(Protocol):
    def __call__(self, path: Path, *, limit: int | None = None) -> Trace: ...


FORMATS: dict[str, tuple[tuple[str, ...], _Reader]] = {
    "philly": (philly.COLUMNS, philly.read),
    "alibaba": (alibaba.COLUMNS, alibaba.read),
    "pollux": (pollux.COLUMNS, pollux.read),
    "csv": (plain.COLUMNS, plain.read),
}
"""By name: the columns that tell the format, and its reader."""


def read_trace(path: Path, *, format: str | None = None, limit: int | None = None) -> Trace:
    """The trace in `path`, of the given format or of the one its columns tell.

    Raises `InvalidRequest` for a file that is no trace.
    """
    if format is not None and format not in FORMATS:
        raise InvalidRequest(f"--format: {format!r} is unknown; there are {', '.join(FORMATS)}")
    reader = _reader(path) if format is None else FORMATS[format][1]
    trace = reader(path, limit=limit)
    if not trace.jobs:
        raise InvalidRequest(f"{path}: there is no job in it")
    return trace


def _reader(path: Path) -> Callable[..., Trace]:
    with opened(path) as lines:
        columns = set(next(csv.reader(lines), ()))
    for needed, reader in FORMATS.values():
        if set(needed) <= columns:
            return reader
    wanted = "; ".join(f"{name}: {', '.join(needed)}" for name, (needed, _) in FORMATS.items())
    raise InvalidRequest(f"{path}: its columns ({', '.join(sorted(columns)) or 'none'}) fit no format. {wanted}")
