"""`make kube` and `make kube-down`: the control plane of this home, without the rest of DSec."""

import argparse
import sys

from rich.console import Console

from dsec_blocks.gateways.clock import SystemClock
from dsec_blocks.model.errors import DsecError
from dsec_deployments import installation
from dsec_deployments.control_plane import plane

EXAMPLES = """examples:
  python -m dsec_deployments.control_plane up             start it (build it first where needed), print its kubeconfig
  python -m dsec_deployments.control_plane down           stop it, keep its data
  python -m dsec_deployments.control_plane down --purge   stop it and leave nothing
"""


def main() -> int:
    """Exit status 0, or 3 with one line that says what is missing."""
    parser = argparse.ArgumentParser(
        prog="python -m dsec_deployments.control_plane",
        description=__doc__,
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("what", choices=("up", "down"))
    parser.add_argument("--purge", action="store_true", help="with down: remove its data too")
    given = parser.parse_args()
    console, home, clock = Console(stderr=True), installation.home(), SystemClock()
    try:
        with console.status("control plane") as status:
            if given.what == "up":
                started = plane.start(home, clock=clock, progress=status.update)
                print(f"Kubernetes runs at {started.server}\nexport KUBECONFIG={started.kubeconfig}")
            else:
                stopped = plane.stop(home, clock=clock, purge=given.purge)
                print(f"stopped {stopped} processes" if stopped else "nothing ran")
    except DsecError as error:
        console.print(str(error), style="red", markup=False, soft_wrap=True)
        return error.exit_code
    return 0


if __name__ == "__main__":
    sys.exit(main())
