"""A function on its way to a rank and its result on the way back.

A flow's script is often not importable in another process (Prefect loads it under a made-up module name), so what it
defines travels by value, and where it could import from travels with it.
"""

import importlib.util
import os
import socket
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any

import cloudpickle

from dsec_blocks.gateways import files
from dsec_blocks.model.errors import InvalidRequest

EXIT_EVICTED = 75
"""A rank that has checkpointed and left because of a notice (EX_TEMPFAIL: try again later)."""


def write_call(path: Path, function: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
    """Put a call where a rank can take it up: cloudpickle of (function, args, kwargs).

    Raises `InvalidRequest` when something in it cannot be sent to another process.
    """
    function = getattr(function, "fn", function) if hasattr(function, "task_runner") else function
    try:
        with _by_value(_own_modules(function)):
            payload = cloudpickle.dumps((function, tuple(args), dict(kwargs)))
    except Exception as error:  # what is pickled decides what pickling it can raise
        name = getattr(function, "__name__", function)
        raise InvalidRequest(
            f"gang.run({name}): the function or an argument cannot be sent to the ranks: {error}. Open files, locks "
            "and connections must be made inside the function"
        ) from error
    call: tuple[Any, ...] = (call_with_path, (str(Path.cwd()), list(sys.path), payload), {})
    files.write(path, cloudpickle.dumps(call), at="gang.call.write")


def call_with_path(cwd: str, sys_path: Sequence[str], payload: bytes) -> Any:
    """In the rank: see the modules that the flow saw, then unpack the call and make it."""
    os.chdir(cwd)
    for entry in reversed(sys_path):
        if entry not in sys.path:
            sys.path.insert(0, entry)
    function, args, kwargs = cloudpickle.loads(payload)
    return function(*args, **kwargs)


def read_result(path: str | None, *, kind: str, exit_code: int) -> Any:
    """What a rank returned; a command's is its exit code."""
    if kind == "command":
        return exit_code
    return cloudpickle.loads(Path(path).read_bytes()) if path else None


def free_port() -> int:
    """A port that was free a moment ago."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _own_modules(function: Callable[..., Any]) -> list[ModuleType]:
    """The module a function comes from, when another process could not import it by its name."""
    module = sys.modules.get(getattr(function, "__module__", "") or "")
    if module is None or module.__name__ == "__main__":
        return []
    try:
        spec = importlib.util.find_spec(module.__name__)
    except (ImportError, ValueError):
        spec = None
    is_made_up = module.__name__.startswith("__prefect_loader_")
    return [module] if is_made_up or spec is None else []


@contextmanager
def _by_value(modules: Sequence[ModuleType]) -> Iterator[None]:
    for module in modules:
        cloudpickle.register_pickle_by_value(module)
    try:
        yield
    finally:
        for module in modules:
            cloudpickle.unregister_pickle_by_value(module)
