"""What a gang in two pods lives through while one of its outposts is struck, with this test as kubelet and worker.

A pod whose first process has ended is cleared as a kubelet clears it; the worker then has the gang's other pods leave.
A process that was stopped is woken once it is seen: what a node does that was suspended.
"""

import os
import signal
import socket
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from dsec_blocks.checkpoints.commit_log import CommitLog
from dsec_blocks.checkpoints.stores import open_store
from dsec_blocks.gateways.clock import SystemClock
from dsec_blocks.model.errors import ClusterError
from dsec_blocks.model.names import ENV_FAULT
from tests.workers.clusters.kubernetes.conftest import GRACE_SECONDS, order_on, until
from tests.workers.clusters.kubernetes.outposts import Outposts, script
from tests.workers.clusters.kubernetes.test_outposts import TRAINS

DEVICES = {0: "GPU-b,GPU-a", 1: "GPU-d,GPU-c"}
CALLS = """
import cloudpickle
def work(base):
    import os
    print("rank", os.environ["RANK"], flush=True)
    return base + int(os.environ["RANK"])
path = os.path.join(os.getcwd(), "call.pickle")
with open(path, "wb") as file:
    file.write(cloudpickle.dumps((work, (40,), {})))
lines = list(channel.stream("run", call={"kind": "function", "path": path}, per="member"))
for line in lines[:-1]:
    with open(line["result"], "rb") as file:
        print("rank", line["rank"], "returned", cloudpickle.loads(file.read()), flush=True)
"""
WAITS = """
stray = "import subprocess, time; subprocess.Popen(['sleep', '600'], start_new_session=True); print(1, flush=True); "
stray += "time.sleep(600)"
run([sys.executable, "-c", stray])
"""
PROGRAMS = {"calls": CALLS, "evicted": TRAINS, "orphaned": WAITS, "stopped": WAITS, "too early": "print('never')"}
"""A function and its results travel; a snapshot does; member 0's pod dies; the gang is stopped, once too early."""


def gang(story: str, folder: Path, environment: Mapping[str, str]) -> Outposts:
    """The gang of a story, not started yet."""
    python = os.pathsep.join(filter(None, [str(Path.cwd()), os.environ.get("PYTHONPATH")]))
    order = order_on(["node-0", "node-1"], gpus=2)
    env = {"PYTHONPATH": python, "STORE": str(folder / "store")}
    order = replace(order, command=script(folder, PROGRAMS[story]), env=env)
    outposts = Outposts(order=order, folder=folder, environment=environment)
    if story == "too early":  # member 1 is stopped before it has its devices
        faults = filter(None, [environment.get(ENV_FAULT), "member.lock:stall"])
        outposts.own_environment = {1: {ENV_FAULT: ",".join(faults)}}
    return outposts


async def play(story: str, outposts: Outposts) -> None:
    """The story from the first process to the last; returns when no process of the gang is left."""
    with socket.create_server(("127.0.0.1", 0)) as never_answers:
        if story == "calls":  # what its ranks print is not taken, and must hold up no pod
            url = f"http://127.0.0.1:{never_answers.getsockname()[1]}/api"
            outposts.secret = {"PREFECT_API_URL": url}
        outposts.start(DEVICES)
        await _play(story, outposts)


async def _play(story: str, outposts: Outposts) -> None:
    watch = _Watch(story, outposts)
    with suppress(AssertionError, ClusterError):
        await outposts.introduce()
    if story != "calls":
        await until(lambda: _is_under_way(story, outposts, watch))
        await _end(story, outposts)
    await until(watch.is_over)


async def _is_under_way(story: str, outposts: Outposts, watch: "_Watch") -> bool:
    watch.look()
    if any(process.poll() is not None for process in outposts.processes):
        return True
    if story == "too early":
        return any(map(_is_stopped, outposts.left_in(1)))
    if story != "evicted":
        return "[rank-" in outposts.output(1)
    with suppress(AssertionError, ClusterError):
        return any(e["type"] == "progressed" and (e.get("step") or 0) > 5 for e in await outposts.events())
    return False


async def _end(story: str, outposts: Outposts) -> None:
    leader = outposts.processes[0]
    if leader.poll() is not None:
        return
    with suppress(AssertionError, ClusterError):
        if story == "evicted":
            deadline = SystemClock().now() + GRACE_SECONDS
            await outposts.ask(
                "notify", notice={"kind": "evict", "reason": "a test", "deadline": deadline, "attempt": 1}
            )
        elif story in ("stopped", "too early"):
            await outposts.ask("stop", grace=0.0)
        else:
            os.killpg(leader.pid, signal.SIGKILL)


class _Watch:
    """Kubelet and worker in one."""

    def __init__(self, story: str, outposts: Outposts) -> None:
        self._story, self._outposts = story, outposts
        self._woken: set[int] = set()
        self._told = False

    def is_over(self) -> bool:
        """Whether nothing of the gang is left."""
        self.look()
        ended = all(process.poll() is not None for process in self._outposts.processes)
        return ended and not any(self._outposts.left_in(index) for index in range(2))

    def look(self) -> None:
        """Do what a kubelet and a worker would do at this moment."""
        for index, process in enumerate(self._outposts.processes):
            there = self._outposts.left_in(index)
            for pid in [pid for pid in there if _is_stopped(pid) and pid not in self._woken]:
                if self._story != "too early" or pid == process.pid or _is_told_to_stop(pid):
                    self._woken.add(pid)
                    os.kill(pid, signal.SIGCONT)
            if process.poll() is None:
                continue
            for pid in there:  # a container's processes end with its first
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            if not self._told:
                self._told = True
                for other in self._outposts.processes:
                    if other.poll() is None:
                        other.terminate()


def _is_stopped(pid: int) -> bool:
    with suppress(OSError):
        stat = Path(f"/proc/{pid}/stat").read_text()
        return stat[stat.rindex(")") + 2] == "T"
    return False


def _is_told_to_stop(pid: int) -> bool:
    with suppress(OSError):
        for line in Path(f"/proc/{pid}/status").read_text().splitlines():
            name, _, value = line.partition(":")
            if name == "ShdPnd":
                return bool(int(value, 16) >> (signal.SIGTERM - 1) & 1)
    return False


def broken(story: str, outposts: Outposts) -> list[str]:
    """What must hold once nothing is left, and does not."""
    found = []
    log = CommitLog(open_store(str(outposts.folder / "store")).open(), outposts.order.key.run_id)
    head: Any = log.head() if (outposts.folder / "store").exists() else None
    for commit in head.newest_first if head is not None else ():
        manifest = log.manifest(commit)
        steps = {log.shard(manifest, rank).state["step"] for rank in range(manifest.world_size)}
        if manifest.world_size != 2 or steps != {commit.step}:
            found.append(f"the commit of step {commit.step} holds {steps} of {manifest.world_size} ranks")
    code, left = outposts.processes[0].returncode, (outposts.folder / "pod-0" / "termination-log").exists()
    if story == "evicted" and code == 0 and left:
        gone = outposts.last_word()
        if gone.get("lost_member") is None and not gone["last_commit_step"]:
            found.append(f"the gang left well, and nothing was committed: {gone}")
    return found
