"""`make kube`, `make kube-down` and `make kube-programs`: the control plane of this home, without the rest of DSec."""

import argparse
import sys
from collections.abc import Callable

from rich.console import Console

from dsec_blocks.gateways.clock import SystemClock
from dsec_blocks.model.errors import DsecError
from dsec_deployments import installation
from dsec_deployments.control_plane import binaries, plane

EXAMPLES = """examples:
  python -m dsec_deployments.control_plane up             start it (build it first where needed), print its kubeconfig
  python -m dsec_deployments.control_plane down           stop it, keep its data
  python -m dsec_deployments.control_plane down --purge   stop it and leave nothing
  python -m dsec_deployments.control_plane build          build its programs where they are missing and can be built
"""


def main() -> int:
    """Exit status 0, or 3 with one line that says what is missing."""
    parser = argparse.ArgumentParser(
        prog="python -m dsec_deployments.control_plane",
        description=__doc__,
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("what", choices=("up", "down", "build"))
    parser.add_argument("--purge", action="store_true", help="with down: remove its data too")
    given = parser.parse_args()
    console, home, clock = Console(stderr=True), installation.home(), SystemClock()
    try:
        with console.status("control plane") as status:
            if given.what == "up":
                started = plane.start(home, clock=clock, progress=status.update)
                print(f"Kubernetes runs at {started.server}\nexport KUBECONFIG={started.kubeconfig}")
            elif given.what == "build":
                print(_built(status.update))
            else:
                stopped = plane.stop(home, clock=clock, purge=given.purge)
                print(f"stopped {stopped} processes" if stopped else "nothing ran")
    except DsecError as error:
        console.print(str(error), style="red", markup=False, soft_wrap=True)
        return error.exit_code
    return 0


def _built(progress: Callable[[str], None]) -> str:
    """One line, and no failure: whoever has no Go can still run all other tests."""
    try:
        programs = binaries.provide((*binaries.CONTROL_PLANE, "helm"), progress=progress)
    except binaries.MissingBinaries as error:
        return f"Kubernetes: its tests will not be run: {error}"
    return "Kubernetes: programs in " + ", ".join(sorted({str(path.parent) for path in programs.values()}))


if __name__ == "__main__":
    sys.exit(main())
