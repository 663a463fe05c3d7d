"""Prefect's own command for what runs long, with the garbage collector kept off all that imports make.

    python -m dsec_deployments.prefect_command server start …

is `prefect server start …`. A server makes a million objects while it imports, and the collector walks them again and
again, then and as long as it serves: a quarter of a start's time, and a tenth of each request's. They live as long as
the process does.
"""

import gc
import importlib
import runpy
import sys

IMPORTED = {"server": "prefect.server.api.server", "worker": "dsec_workers.gang_worker"}
"""By the first word of a command, what it imports before it begins."""


def command(*arguments: str) -> list[str]:
    """The command line of `prefect ARGUMENTS` for a server or a worker."""
    return [sys.executable, "-m", __name__, *arguments]


def main() -> None:
    """Import what the command will, have the collector leave it alone, and be Prefect's command."""
    gc.disable()
    importlib.import_module("prefect.main")
    if name := IMPORTED.get(" ".join(sys.argv[1:2])):
        importlib.import_module(name)
    gc.freeze()
    gc.enable()
    runpy.run_module("prefect", run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
