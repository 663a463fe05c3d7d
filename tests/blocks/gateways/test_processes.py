"""What a forked child holds of its parent's."""

import gc
import os
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

from dsec_blocks.gateways import processes

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


PARENT = """
import os, subprocess, threading
from dsec_blocks.gateways import processes

sleeping = subprocess.Popen(["sleep", "60"])
in_a_thread = []
thread = threading.Thread(target=lambda: in_a_thread.append(subprocess.Popen(["sleep", "60"])))
thread.start()
thread.join()
mine = {child.pid for child in (sleeping, *in_a_thread)}
assert processes.children(os.getpid()) == mine, (processes.children(os.getpid()), mine)
assert processes.children(sleeping.pid) == set()
for child in (sleeping, *in_a_thread):
    child.kill()
os.waitid(os.P_PID, sleeping.pid, os.WEXITED | os.WNOWAIT)
assert sleeping.pid in processes.children(os.getpid())
sleeping.wait()
assert sleeping.pid not in processes.children(os.getpid())
assert processes.children(sleeping.pid) is None
print("as the kernel says")
"""


def test_children_are_told_as_the_kernel_knows_them() -> None:
    done = subprocess.run([sys.executable, "-c", PARENT], capture_output=True, text=True)
    assert done.stdout == "as the kernel says\n", done.stderr


def test_a_program_that_is_held_begins_when_it_is_released(tmp_path: Path) -> None:
    written = tmp_path / "ran"
    pid, release = processes.spawn_held(
        ["/bin/sh", "-c", f"echo $$ > {written}"], env={}, output=tmp_path / "log", at="test.spawn"
    )
    found = processes.identify(pid)
    assert processes.is_alive(found) and not written.exists()
    release()
    _until(lambda: not processes.is_alive(found))
    assert written.read_text().split() == [str(pid)], "what was identified is what runs"


def test_a_program_whose_starter_died_before_it_released_it_never_begins(tmp_path: Path) -> None:
    written = tmp_path / "ran"
    program = (
        "import os, pathlib\nfrom dsec_blocks.gateways import processes\n"
        f"path = pathlib.Path({str(tmp_path / 'log')!r})\n"
        f"pid, _ = processes.spawn_held(['/bin/touch', {str(written)!r}], env={{}}, output=path, at='test.spawn')\n"
        "print(pid, flush=True)\nos.kill(os.getpid(), 9)\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert done.returncode == -9
    _until(lambda: processes.sighting(int(done.stdout)) is None)
    assert not written.exists()


def _until(reached: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 20
    while not reached():
        processes.reap()
        assert time.monotonic() < deadline
        time.sleep(0.02)
