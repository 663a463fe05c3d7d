"""What a training flow is told to run: a command, or a function named by where it is."""

import importlib
import sys
from collections.abc import Mapping
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from typing import Any

from dsec_blocks.model.errors import InvalidRequest


def load_function(name: str) -> Any:
    """The function called `package.module:function` or `path/to/file.py:function`.

    Raises `InvalidRequest` when there is none.
    """
    where, colon, attribute = name.rpartition(":")
    if not colon or not where or not attribute:
        raise InvalidRequest(f"function: {name!r} is neither package.module:function nor path/to/file.py:function")
    try:
        module = _load_file(Path(where)) if where.endswith(".py") else importlib.import_module(where)
    except (ImportError, FileNotFoundError) as error:
        raise InvalidRequest(f"function: {name!r} cannot be loaded: {error}") from error
    function = getattr(module, attribute, None)
    if not callable(function):
        raise InvalidRequest(f"function: {where} has no function {attribute!r}")
    return function


def call(name: str, parameters: Mapping[str, Any]) -> Any:
    """In a rank: load the function and call it."""
    return load_function(name)(**parameters)


def _load_file(path: Path) -> Any:
    if not path.is_file():
        raise FileNotFoundError(f"there is no file {path.absolute()}")
    spec = spec_from_file_location(path.stem, path)
    assert spec is not None and spec.loader is not None
    module = module_from_spec(spec)
    sys.modules[path.stem] = module
    spec.loader.exec_module(module)
    return module
