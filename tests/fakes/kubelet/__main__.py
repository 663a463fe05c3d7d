"""`python -m tests.fakes.kubelet`: the stand-in as a process; nodes come through `process_nodes.ProcessNodes`."""

import argparse
import os
import signal
import socket
from pathlib import Path

from tests.fakes.kubelet import shim
from tests.fakes.kubelet.runtime import Runtime


def main() -> None:
    """Fork the kubelet's half and become the runtime."""
    parser = argparse.ArgumentParser(prog="python -m tests.fakes.kubelet", description=__doc__)
    parser.add_argument("--kubeconfig", required=True, help="an administrator's")
    parser.add_argument("--folder", required=True, type=Path, help="for everything it writes; a short path")
    parser.add_argument("--parent", type=int, help="end when this process, our parent, does")
    given = parser.parse_args()
    if given.parent:
        shim.die_with_parent(signal.SIGTERM, parent=given.parent)
    given.folder.mkdir(parents=True, exist_ok=True)
    ours, its = socket.socketpair()
    kubelet = os.fork()
    if kubelet == 0:
        ours.close()
        _kubelet(its, given.kubeconfig, given.folder)
    its.close()
    Runtime(ours, kubelet=kubelet).serve()


def _kubelet(channel: socket.socket, kubeconfig: str, folder: Path) -> None:
    import anyio

    from tests.fakes.kubelet.stand_in import serve

    async def run() -> None:
        await serve(channel, kubeconfig=kubeconfig, folder=folder)

    # The runtime is told to end and closes the channel; a Ctrl-C in a terminal reaches us as well.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        anyio.run(run)
    finally:
        os._exit(0)


if __name__ == "__main__":
    main()
