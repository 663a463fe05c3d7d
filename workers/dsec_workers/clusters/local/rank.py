"""One rank of a `gang.run`: forked from its member, with the member's locks, a function or a program."""

import asyncio
import inspect
import json
import os
import sys
import traceback
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import cloudpickle

from dsec_blocks.gateways import files, processes
from dsec_blocks.model.errors import Evicted

EXIT_EVICTED = 75
"""The rank has checkpointed and left because of a notice (EX_TEMPFAIL: try again later)."""


def result_file(directory: Path, rank: int) -> Path:
    """Where a rank leaves what its function returned."""
    return directory / f"rank-{rank}.result"


def error_file(directory: Path, rank: int) -> Path:
    """Where a rank leaves the error that ended it."""
    return directory / f"rank-{rank}.error.json"


def run_call(call: Mapping[str, Any], *, rank: int, results: Path, argv: Sequence[str], locks: Sequence[int]) -> int:
    """Do the rank's work in this process; returns the exit code, unless the process becomes another program."""
    where = call.get("cwd")
    if where:
        os.chdir(where)
    if call["kind"] == "command":
        return _become(argv, rank=rank, results=results, locks=locks)
    for entry in reversed(call.get("sys_path") or []):
        if entry not in sys.path:
            sys.path.insert(0, entry)
    return _call_function(Path(call["path"]), rank=rank, results=results)


def _become(argv: Sequence[str], *, rank: int, results: Path, locks: Sequence[int]) -> int:
    for descriptor in locks:
        os.set_inheritable(descriptor, True)
    try:
        processes.execute(argv, os.environ, at="rank.exec")
    except OSError as error:
        text = f"cannot run {argv[0]!r}: {error.strerror or error}; is it installed and on the PATH of the run's env?"
        print(text, file=sys.stderr)
        _write_error(error_file(results, rank), type(error).__name__, text, "")
        return 127
    raise AssertionError("execute returned")


def _call_function(path: Path, *, rank: int, results: Path) -> int:
    try:
        function, args, kwargs = cloudpickle.loads(path.read_bytes())
        returned = function(*args, **kwargs)
        if inspect.iscoroutine(returned):
            returned = asyncio.run(returned)
        files.write(result_file(results, rank), cloudpickle.dumps(returned), at="rank.result.write")
    except Evicted:
        return EXIT_EVICTED
    except SystemExit:
        raise
    except BaseException as error:  # noqa: BLE001 - whatever it is, it is the rank's answer
        traceback.print_exc()
        _write_error(error_file(results, rank), type(error).__name__, str(error), traceback.format_exc())
        return 1
    return 0


def _write_error(path: Path, kind: str, message: str, trace: str) -> None:
    record = {"type": kind, "message": message, "traceback": trace}
    files.write(path, json.dumps(record).encode(), at="rank.error.write")
