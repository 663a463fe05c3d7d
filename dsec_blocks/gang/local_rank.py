"""The one rank of a `gang.run` outside a gang: a child process, so that code meets the same walls as on the pool."""

import asyncio
import json
import sys
import traceback
from pathlib import Path
from typing import Any

import cloudpickle

from dsec_blocks.gang.calls import EXIT_EVICTED
from dsec_blocks.gateways import files
from dsec_blocks.model.errors import Evicted


def run_function(call: Path, result: Path, error: Path) -> int:
    """Be the one rank of a local `gang.run`; returns the exit code."""
    try:
        function, args, kwargs = cloudpickle.loads(call.read_bytes())
        returned = function(*args, **kwargs)
        if hasattr(returned, "__await__"):
            returned = asyncio.run(_awaited(returned))
        files.write(result, cloudpickle.dumps(returned), at="gang.result.write")
    except Evicted:
        return EXIT_EVICTED
    except Exception as failure:  # noqa: BLE001 - whatever it is, it is the rank's answer
        told = {"type": type(failure).__name__, "message": str(failure), "traceback": traceback.format_exc()}
        files.write(error, json.dumps(told).encode(), at="gang.error.write")
        return 1
    return 0


async def _awaited(awaitable: Any) -> Any:
    return await awaitable


if __name__ == "__main__":
    sys.exit(run_function(*map(Path, sys.argv[1:4])))
