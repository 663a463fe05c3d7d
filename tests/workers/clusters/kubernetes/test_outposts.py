"""Outposts over TCP: two pods' worth of processes that are one gang, with its channel, its ranks and its ends."""

import asyncio
import json
import os
import re
import signal
import socket
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from dsec_blocks.gateways import processes
from dsec_blocks.gateways.clock import SystemClock
from dsec_blocks.model.errors import ClusterError
from dsec_workers.clusters.kubernetes import talk
from dsec_workers.clusters.talk import NotThere
from tests.workers.clusters.kubernetes.conftest import GRACE_SECONDS, order_on, until
from tests.workers.clusters.kubernetes.outposts import Outposts, script

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]
Open = Callable[..., Outposts]
DEVICES = {0: "GPU-b,GPU-a", 1: "GPU-d,GPU-c"}
RANKS_SAY_WHO_THEY_ARE = """
names = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "CUDA_VISIBLE_DEVICES", "DSEC_MEMBER", "DSEC_DEVICES")
program = "import os, json; print(json.dumps({name: os.environ[name] for name in %r}))" % (names,)
ended, last = run([sys.executable, "-c", program])
assert [line["exit"] for line in ended] == [0] * len(ended), (ended, last)
"""


@pytest.fixture
def gang(tmp_path: Path) -> Iterator[Open]:
    opened: list[Outposts] = []

    def open_gang(program: str, *, members: int = 2, gpus: int = 2, **fields: Any) -> Outposts:
        order = order_on([f"node-{i}" for i in range(members)], gpus=gpus)
        (tmp_path / f"{len(opened)}").mkdir()
        folder = tmp_path / f"{len(opened)}"
        env = {"PYTHONPATH": os.pathsep.join(filter(None, [str(Path.cwd()), os.environ.get("PYTHONPATH")]))}
        order = replace(order, command=script(folder, program), env=env, **fields)
        opened.append(Outposts(order=order, folder=folder))
        return opened[-1]

    yield open_gang
    for each in opened:
        each.close()


async def test_ranks_on_both_pods_know_their_place_and_the_cards_that_the_kubelet_chose(gang: Open) -> None:
    outposts = gang(RANKS_SAY_WHO_THEY_ARE)
    outposts.start(DEVICES)
    await outposts.introduce()
    assert await outposts.exits() == [0, 0], outposts.output(0) + outposts.output(1)
    gone = outposts.last_word()
    assert (gone["flow_exit"], gone["member_exits"], gone["lost_member"]) == (0, {"0": 0, "1": 0}, None)
    said = [json.loads(outposts.directory(rank // 2).log(f"rank-{rank}").read_text()) for rank in range(4)]
    assert [each["CUDA_VISIBLE_DEVICES"] for each in said] == ["GPU-b", "GPU-a", "GPU-d", "GPU-c"]
    assert [(each["RANK"], each["LOCAL_RANK"], each["DSEC_MEMBER"]) for each in said] == [
        ("0", "0", "0"), ("1", "1", "0"), ("2", "0", "1"), ("3", "1", "1"),
    ]  # fmt: skip
    assert {each["MASTER_ADDR"] for each in said} == {outposts.addresses[0]} and said[0]["WORLD_SIZE"] == "4"
    assert "[rank-2] {" in outposts.output(1), "what a rank prints is in its pod's own log"


async def test_no_user_code_runs_before_every_member_is_there(gang: Open) -> None:
    outposts = gang("print('user code', flush=True)")
    outposts.start(DEVICES)
    await outposts.ask("status")
    assert (await outposts.ask("introduce", members={}))["waiting_for"] == [1]
    assert not [event for event in await outposts.events() if event["type"] == "started"]
    await outposts.introduce()
    assert await outposts.exits() == [0, 0]
    assert "user code" in outposts.output(0)


async def test_functions_travel_to_the_other_pod_and_results_come_back(gang: Open) -> None:
    outposts = gang(
        """
        import cloudpickle
        def work(base):
            import os
            return base + int(os.environ["RANK"]), "x" * 3_000_000
        path = os.path.join(os.getcwd(), "call.pickle")
        with open(path, "wb") as file:
            file.write(cloudpickle.dumps((work, (40,), {})))
        lines = list(channel.stream("run", call={"kind": "function", "path": path}, per="member"))
        for line in lines[:-1]:
            with open(line["result"], "rb") as file:
                value, padding = cloudpickle.loads(file.read())
            print("rank", line["rank"], "returned", value, len(padding), flush=True)
        """
    )
    outposts.start(DEVICES)
    await outposts.introduce()
    assert await outposts.exits() == [0, 0], outposts.output(0) + outposts.output(1)
    assert "rank 0 returned 40 3000000" in outposts.output(0)
    assert "rank 1 returned 41 3000000" in outposts.output(0)


async def test_a_rank_need_not_import_prefect_itself_whatever_pod_it_is_in(gang: Open) -> None:
    outposts = gang(
        """
        import cloudpickle
        def work():
            import sys
            return "prefect.engine" in sys.modules
        path = os.path.join(os.getcwd(), "call.pickle")
        with open(path, "wb") as file:
            file.write(cloudpickle.dumps((work, (), {})))
        lines = list(channel.stream("run", call={"kind": "function", "path": path}, per="device"))
        for line in lines[:-1]:
            with open(line["result"], "rb") as file:
                print("rank", line["rank"], "has it:", cloudpickle.loads(file.read()), flush=True)
        """
    )
    outposts.start(DEVICES)
    await outposts.introduce()
    assert await outposts.exits() == [0, 0], outposts.output(0) + outposts.output(1)
    assert [f"rank {rank} has it: True" in outposts.output(0) for rank in range(4)] == [True] * 4


async def test_an_error_in_the_other_pod_comes_back_with_its_traceback_and_stops_the_others(gang: Open) -> None:
    outposts = gang(
        """
        import cloudpickle
        def work():
            import os, time
            if os.environ["RANK"] == "1":
                raise ValueError("no such luck")
            time.sleep(600)
        path = os.path.join(os.getcwd(), "call.pickle")
        with open(path, "wb") as file:
            file.write(cloudpickle.dumps((work, (), {})))
        lines = sorted(list(channel.stream("run", call={"kind": "function", "path": path}, per="member"))[:-1],
                       key=lambda line: line["rank"])
        print(lines[1]["error"]["type"], lines[1]["error"]["message"], lines[0]["exit"], flush=True)
        """
    )
    outposts.start(DEVICES)
    await outposts.introduce()
    assert await outposts.exits() == [0, 0], outposts.output(0) + outposts.output(1)
    assert f"ValueError no such luck {-signal.SIGTERM}" in outposts.output(0)


TRAINS = """
program = '''
import os, sys, time
from pathlib import Path
from dsec_blocks.gang import run
checkpoint = run.checkpoints(os.environ["STORE"])
state = checkpoint.restore({"step": 0})
@run.on_evict
def snapshot(step):
    checkpoint.save(step, {"step": step})
for step in run.steps(100_000):
    from dsec_blocks.gang import agree
    agree(step)
    if step % 10 == 0:
        print("step", step, flush=True)
    time.sleep(0.01)
'''
ended, last = run([sys.executable, "-c", program], per="member", env={"STORE": os.environ["STORE"]})
print("ended", [line["exit"] for line in ended], last, flush=True)
"""


async def test_an_evicted_gang_stops_at_one_step_and_its_snapshot_of_both_pods_is_committed(
    gang: Open, tmp_path: Path
) -> None:
    outposts = gang(TRAINS)
    outposts = replace(
        outposts, order=replace(outposts.order, env={**outposts.order.env, "STORE": str(tmp_path / "s")})
    )
    outposts.start(DEVICES)
    try:
        await outposts.introduce()

        async def trains() -> bool:
            return any(e["type"] == "progressed" and (e.get("step") or 0) > 5 for e in await outposts.events())

        await until(trains)
        deadline = SystemClock().now() + GRACE_SECONDS
        notice = {"kind": "evict", "reason": "a test needs the devices", "deadline": deadline, "attempt": 1}
        await outposts.ask("notify", notice=notice)
        await outposts.exits()
        gone = outposts.last_word()
        assert gone["notice"] == "evict" and gone["lost_member"] is None, outposts.output(0) + outposts.output(1)
        assert gone["last_commit_step"] and gone["last_commit_step"] > 5
        from dsec_blocks.checkpoints.commit_log import CommitLog
        from dsec_blocks.checkpoints.stores import open_store

        log = CommitLog(open_store(str(tmp_path / "s")).open(), outposts.order.key.run_id)
        (commit, *_) = log.head().newest_first
        manifest = log.manifest(commit)
        assert (commit.step, manifest.world_size) == (gone["last_commit_step"], 2)
        assert [log.shard(manifest, rank).state["step"] for rank in (0, 1)] == [commit.step, commit.step]
    finally:
        outposts.close()


async def test_sigterm_at_one_pod_lets_the_whole_gang_leave_politely(gang: Open, tmp_path: Path) -> None:
    outposts = gang(TRAINS)
    outposts = replace(
        outposts, order=replace(outposts.order, env={**outposts.order.env, "STORE": str(tmp_path / "s")})
    )
    outposts.start(DEVICES)
    try:
        await outposts.introduce()

        async def trains() -> bool:
            return any(e["type"] == "progressed" and (e.get("step") or 0) > 5 for e in await outposts.events())

        await until(trains)
        outposts.processes[1].send_signal(signal.SIGTERM)
        await outposts.exits()
        gone = outposts.last_word()
        assert (gone["notice"], gone["lost_member"]) == ("drain", None) and gone["last_commit_step"]
    finally:
        outposts.close()


async def test_a_pod_that_dies_takes_the_gang_with_it_and_leaves_no_process(gang: Open) -> None:
    outposts = gang("run([sys.executable, '-c', 'import time; time.sleep(600)'])")
    outposts.start(DEVICES)
    await outposts.introduce()
    await outposts.until_event("started")
    os.killpg(outposts.processes[1].pid, signal.SIGKILL)
    await until(lambda: outposts.processes[0].poll() is not None)
    assert outposts.last_word()["lost_member"] == 1


async def test_a_pod_without_its_first_member_stops_its_ranks_and_leaves(gang: Open) -> None:
    outposts = gang("run([sys.executable, '-c', 'import time; print(1, flush=True); time.sleep(600)'])")
    outposts.start(DEVICES)
    await outposts.introduce()
    await outposts.until_event("started")
    await until(lambda: "[rank-2] 1" in outposts.output(1))
    os.killpg(outposts.processes[0].pid, signal.SIGKILL)
    await until(lambda: outposts.processes[1].poll() is not None)
    assert outposts.processes[1].returncode != 0


async def test_other_cards_than_were_reserved_fail_the_start_and_name_the_member(gang: Open) -> None:
    outposts = gang("print('never', flush=True)")
    outposts.start({**DEVICES, 1: "GPU-c"})
    await outposts.introduce()
    await until(lambda: outposts.processes[0].poll() is not None)
    assert outposts.last_word()["start_failure"] == "member 1: 2 devices were reserved and the node gave 1 (GPU-c)"
    assert "never" not in outposts.output(0)


async def test_a_member_that_never_comes_fails_the_start_in_time(gang: Open) -> None:
    outposts = gang("print('never', flush=True)", start_timeout_seconds=3.0)
    outposts.start(DEVICES)
    assert (await outposts.exits_of(0)) != 0
    why = outposts.last_word()["start_failure"]
    assert re.fullmatch(r"member (0, )?1 did not get its devices within 3 s", why)  # 0 may be as late on a busy machine


async def test_a_prefect_server_that_takes_no_output_holds_up_no_pod_and_nothing_is_left_trying(gang: Open) -> None:
    outposts = gang("run([sys.executable, '-c', 'print(7)'])")
    with socket.create_server(("127.0.0.1", 0)) as never_answers:
        outposts.secret = {"PREFECT_API_URL": f"http://127.0.0.1:{never_answers.getsockname()[1]}/api"}
        outposts.start(DEVICES)
        await outposts.introduce()
        assert await outposts.exits() == [0, 0], outposts.output(0) + outposts.output(1)
    assert "[rank-2] 7" in outposts.output(1)
    pods = [str(outposts.folder / f"pod-{index}") for index in range(2)]
    table = [row.pid for row in processes.processes() if not row.is_zombie]
    assert [pid for pid in table if processes.environment(pid).get("DSEC_SCRATCH") in pods] == []


async def test_a_stranger_is_not_let_in(gang: Open) -> None:
    outposts = gang("time.sleep(600)", members=1)
    outposts.start(DEVICES)
    await outposts.until_event("started")
    stranger = talk.Address(host=outposts.addresses[0], port=outposts.port, token="guessed")
    with pytest.raises(NotThere, match="hung up"):
        await talk.call(stranger, {"op": "stop"}, timeout_seconds=60.0)
    await outposts.ask("stop", grace=0.0)
    await outposts.exits()


async def test_a_parcel_goes_nowhere_but_into_the_gangs_own_results_and_spool(gang: Open) -> None:
    outposts = gang("time.sleep(600)", members=1)
    outposts.start(DEVICES)
    await outposts.until_event("started")
    from dsec_workers.clusters.kubernetes.outpost.door import knock

    greeting = {"token": outposts.token, "as": "parcel", "path": "../../../etc/passwd", "size": 1}
    with pytest.raises(ClusterError, match="is refused"):
        await asyncio.to_thread(knock, outposts.addresses[0], outposts.port, greeting)


async def test_events_are_followed_from_where_one_was(gang: Open) -> None:
    outposts = gang("time.sleep(0.2)", members=1)
    outposts.start(DEVICES)
    started = await outposts.until_event("started")
    told = [record["type"] async for record in talk.follow(outposts.leader, started["seq"])]
    assert told == ["devices_released", "gone"]
