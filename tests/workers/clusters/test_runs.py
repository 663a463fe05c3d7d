"""`gang.run`: ranks on every member, who they are told to be, and what comes back from them."""

import pickle
import time
from pathlib import Path
from typing import Any

import cloudpickle
import pytest

from dsec_blocks.gateways import processes
from dsec_workers.clusters.protocol import DevicesReleased, Started
from tests.workers.clusters.conftest import Desk, notice

pytestmark = pytest.mark.slow

DEVICES = [["run-0", "run-1"], ["run-2", "run-3"]]
VARIABLES = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "DSEC_MEMBER", "CUDA_VISIBLE_DEVICES")
VARIABLES += ("CUDA_DEVICE_ORDER", "MASTER_ADDR", "MASTER_PORT", "MINE")


def a_call(path: Path, function: Any, *args: Any) -> str:
    """A function call as the SDK hands it over: by value, since the ranks do not have the test's modules."""
    import sys

    cloudpickle.register_pickle_by_value(sys.modules[__name__])
    path.write_bytes(cloudpickle.dumps((function, args, {})))
    return str(path)


def who_am_i(names: tuple[str, ...]) -> dict[str, str | None]:
    import os

    return {name: os.environ.get(name) for name in names}


@pytest.mark.parametrize("per", ["device", "member"])
async def test_every_rank_of_a_function_knows_who_it_is(desk: Desk, tmp_path: Path, per: str) -> None:
    call = a_call(tmp_path / "call", who_am_i, VARIABLES)
    order = desk.order(
        f"""
        import pickle
        lines = list(channel.stream("run", call={{"kind": "function", "path": {call!r}}}, per={per!r},
                                    env={{"MINE": "yes"}}))
        ranks = sorted(lines[:-1], key=lambda line: line["rank"])
        pickle.dump([(r["member"], r["exit"], r["error"], pickle.load(open(r["result"], "rb"))) for r in ranks],
                    open("answers", "wb"))
        print(lines[-1])
        """,
        devices=DEVICES,
    )
    gone = await desk.run(order)
    assert gone.flow_exit == 0, desk.log(order.key)
    answers = pickle.loads((desk.directory(order.key).work / "answers").read_bytes())
    assert desk.log(order.key) == "{'done': True, 'evicted': False}\n"
    assert len(answers) == (4 if per == "device" else 2)
    for rank, (member, code, error, env) in enumerate(answers):
        local, local_size = (rank % 2, 2) if per == "device" else (0, 1)
        assert (member, code, error) == ((rank // 2 if per == "device" else rank), 0, None)
        assert env["RANK"] == str(rank) and env["WORLD_SIZE"] == str(len(answers))
        assert env["LOCAL_RANK"] == str(local) and env["LOCAL_WORLD_SIZE"] == str(local_size)
        assert env["DSEC_MEMBER"] == str(member)
        visible = [DEVICES[member][local]] if per == "device" else DEVICES[member]
        assert env["CUDA_VISIBLE_DEVICES"] == ",".join(visible)
        assert env["CUDA_DEVICE_ORDER"] == "PCI_BUS_ID" and env["MASTER_ADDR"] == "127.0.0.1"
        assert env["MINE"] == "yes"
    assert len({env["MASTER_PORT"] for *_, env in answers}) == 1


async def test_a_gang_without_devices_has_one_rank_a_member_and_runs_a_command(desk: Desk) -> None:
    order = desk.order(
        """
        ranks, last = run(["sh", "-c", "echo rank $RANK of $WORLD_SIZE"], per="device")
        print([(r["rank"], r["member"], r["exit"], r["error"]) for r in ranks], last)
        """,
        devices=[[], []],
    )
    assert (await desk.run(order)).flow_exit == 0
    assert desk.log(order.key, "rank-0") == "rank 0 of 2\n" and desk.log(order.key, "rank-1") == "rank 1 of 2\n"
    assert desk.log(order.key) == "[(0, 0, 0, None), (1, 1, 0, None)] {'done': True, 'evicted': False}\n"


def fail_at_rank_one() -> str:
    import os
    import time

    if os.environ["RANK"] == "1":
        raise ValueError("rank one has had enough")
    time.sleep(60)
    return "never"


async def test_a_failing_rank_stops_the_others_and_its_error_is_reported(desk: Desk, tmp_path: Path) -> None:
    call = a_call(tmp_path / "call", fail_at_rank_one)
    order = desk.order(
        f"""
        for line in channel.stream("run", call={{"kind": "function", "path": {call!r}}}, per="device"):
            print(json.dumps(line), flush=True)
        """,
        devices=[["err-0"], ["err-1"]],
    )
    before = time.monotonic()
    gone = await desk.run(order)
    assert time.monotonic() - before < 50
    assert gone.flow_exit == 0 and gone.lost_member is None
    import json

    first, second, last = [json.loads(line) for line in desk.log(order.key).splitlines()]
    assert first["rank"] == 1 and first["exit"] == 1
    assert first["error"]["type"] == "ValueError" and first["error"]["message"] == "rank one has had enough"
    assert "fail_at_rank_one" in first["error"]["traceback"]
    assert second["rank"] == 0 and second["exit"] == -15 and second["error"]["type"] == "Killed"
    assert last == {"done": True, "evicted": False}


async def test_ranks_meet_and_learn_when_one_of_them_will_never_come(desk: Desk) -> None:
    rank = desk.script(
        """
        me = int(os.environ["RANK"])
        print(channel.call("agree", name="flag", rank=me, value=me == 1)["value"])
        print(channel.call("agree", name="step", rank=me, value=10 * me)["value"])
        channel.call("barrier", name="b", rank=me)
        if me == 1:
            sys.exit(0)
        try:
            channel.call("agree", name="again", rank=me, value=True)
        except Exception as error:
            print(error)
        """
    )
    order = desk.order(f"run([sys.executable, {rank!r}], per='member')", devices=[[], []])
    assert (await desk.run(order)).flow_exit == 0
    assert desk.log(order.key, "rank-1") == "True\n10\n"
    assert desk.log(order.key, "rank-0") == "True\n10\nrank 1 has left; the ranks cannot meet any more\n"


async def test_a_rank_takes_its_children_along(desk: Desk) -> None:
    order = desk.order(
        """
        run(["sh", "-c", "sleep 300 & echo started"])
        print("over", flush=True)
        time.sleep(30)
        """,
        devices=[["child-0"]],
    )
    await desk.cluster.launch(order)
    await desk.said(order.key, "over")
    commands = [processes.environment(pid).get("RANK") for pid in desk.left(order.key)]
    assert "0" not in commands


async def test_a_run_on_a_noticed_gang_starts_nothing(desk: Desk) -> None:
    order = desk.order(
        """
        run(["true"])
        wait_for_notice()
        time.sleep(0.2)
        print(list(channel.stream("run", call={"kind": "command", "argv": ["echo", "ran"]})))
        """,
        devices=[["after-0"]],
    )
    await desk.cluster.launch(order)
    await desk.until(order.key, Started)
    await desk.said(order.key, "", log="rank-0")
    import asyncio

    await asyncio.sleep(0.5)
    await desk.cluster.notify(order.key, notice(10))
    await desk.until(order.key, DevicesReleased)
    await desk.gone(order.key)
    assert desk.log(order.key) == "[{'done': True, 'evicted': True}]\n"
    assert desk.log(order.key, "rank-0") == ""


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"call": {"kind": "command", "argv": []}}, "nothing to run"),
        ({"call": {"kind": "command", "argv": ["true"]}, "per": "gpu"}, "neither 'device' nor 'member'"),
        ({"call": {"kind": "command", "argv": ["true"]}, "launcher": "ray"}, "launcher 'ray' is not available"),
        ({"call": {"kind": "function", "path": "x"}, "launcher": "torchrun"}, "torchrun launches commands"),
        ({}, "a field is missing or wrong"),
    ],
)
async def test_a_call_that_cannot_run_is_refused_in_one_line(desk: Desk, fields: dict[str, Any], words: str) -> None:
    order = desk.order(
        f"""
        try:
            list(channel.stream("run", **{fields!r}))
        except Exception as error:
            print(type(error).__name__, error)
        """
    )
    assert (await desk.run(order)).flow_exit == 0
    assert desk.log(order.key).startswith("ClusterError") and words in desk.log(order.key)


async def test_a_program_that_is_not_there_is_a_ranks_error(desk: Desk) -> None:
    order = desk.order("ranks, _ = run(['no-such-program'])\nprint(ranks[0]['exit'], ranks[0]['error']['message'])")
    assert (await desk.run(order)).flow_exit == 0
    assert desk.log(order.key).startswith("127 cannot run 'no-such-program'")
