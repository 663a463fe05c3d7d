"""What a forked child holds of its parent's."""

import gc
import os
import socket
import subprocess
import sys

CHILD = """
import gc, os, socket
from dsec_blocks.gateways import processes

left, right = socket.socketpair()
number = left.fileno()
processes.close_descriptors(keep=())
mine = [os.open(os.devnull, os.O_RDONLY) for _ in range(64)]
del left, right
gc.collect()
for descriptor in mine:
    os.fstat(descriptor)
print("all mine are open")
"""


def test_a_stale_object_of_the_parent_closes_nothing_of_the_childs() -> None:
    done = subprocess.run([sys.executable, "-c", CHILD], capture_output=True, text=True)
    assert done.stdout == "all mine are open\n", done.stderr


def test_what_is_let_go_is_really_closed() -> None:
    left, right = socket.socketpair()
    child = os.fork()
    if child == 0:
        from dsec_blocks.gateways import processes

        processes.close_descriptors(keep=())
        os._exit(0 if all("socket" not in os.readlink(f"/proc/self/fd/{n}") for n in _open()) else 1)
    _, status = os.waitpid(child, 0)
    left.close()
    right.close()
    gc.collect()
    assert os.waitstatus_to_exitcode(status) == 0


def _open() -> list[str]:
    found = []
    for entry in os.listdir("/proc/self/fd"):
        try:
            os.readlink(f"/proc/self/fd/{entry}")
        except OSError:
            continue
        if int(entry) > 2:
            found.append(entry)
    return found
