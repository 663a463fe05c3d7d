"""A gang and its worker are of different versions: the former one's words, kept in a file, are understood; a newer
one's are refused in one line.

`former/protocol-1.json` is what a DSec said that told no version: its Jobs, its orders, both sides of its channels, and
the files of a gang on one machine.
"""

import asyncio
import json
import os
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from dsec_blocks.gateways import processes
from dsec_blocks.gateways.clock import SystemClock
from dsec_blocks.model import gang_protocol
from dsec_blocks.model.errors import GangTooNew
from dsec_workers.clusters.kubernetes import talk
from dsec_workers.clusters.kubernetes.gang_view import GangView
from dsec_workers.clusters.kubernetes.naming import key_of, placement_of, timing_of
from dsec_workers.clusters.kubernetes.outpost.termination import decode
from dsec_workers.clusters.local import LocalCluster
from dsec_workers.clusters.local.happenings import event_of
from dsec_workers.clusters.local.layout import GangDirectory, order_from_json, to_bytes
from dsec_workers.clusters.protocol import (
    Committed,
    DevicesReleased,
    GangKey,
    Gone,
    Progressed,
    Snapshotting,
    Started,
)
from tests.fixtures.ports import free_port
from tests.workers.clusters.kubernetes.conftest import until
from tests.workers.clusters.kubernetes.outposts import Outposts, script

FORMER = json.loads(Path(__file__).with_name("former").joinpath("protocol-1.json").read_text())
NEWER = {"protocol": gang_protocol.VERSION + 1}
TOLD = [Started, Progressed, Committed, Snapshotting, DevicesReleased, Gone]


def without_progress(kinds: Sequence[type]) -> list[type]:
    return [kind for kind in kinds if kind is not Progressed]


# --- a newer worker and a gang that it finds -------------------------------------------------------------------------


@asynccontextmanager
async def former_outpost() -> AsyncIterator[talk.Address]:
    """An outpost of the former version, as it answered: its greeting, then what was recorded of each operation."""
    token = "a token"

    async def met(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        greeting = json.loads(await reader.readline())
        assert (greeting["token"], greeting["as"]) == (token, "channel")
        answers = [FORMER["greeting_answer"]]
        writer.write(json.dumps(answers[0]).encode() + b"\n")
        request = json.loads(await reader.readline())
        answers = FORMER["events"] if request["op"] == "events" else [FORMER["calls"][request["op"]]]
        for answer in answers:
            writer.write(json.dumps(answer).encode() + b"\n")
        await writer.drain()
        writer.close()

    server = await asyncio.start_server(met, "127.0.0.1", 0)
    async with server:
        yield talk.Address(host="127.0.0.1", port=server.sockets[0].getsockname()[1], token=token)


async def test_a_worker_follows_a_former_outpost_and_asks_it_everything() -> None:
    async with former_outpost() as address:
        for op in ("status", "introduce", "notify", "withdraw"):
            answer = await talk.call(address, {"op": op}, timeout_seconds=10)
            assert answer == FORMER["calls"][op]
        records = [record async for record in talk.follow(address, 0)]
    key = GangKey("x", 1)
    assert without_progress([type(event_of(key, record)) for record in records]) == without_progress(TOLD)
    view = GangView(
        key=key, namespace="team", members={}, count=2, created_at=0.0, start_timeout_seconds=1.0, grace_seconds=1.0
    )
    for record in records:
        view.hear(record)
    assert view.is_started and isinstance(view.news()[0], Started)


def test_the_last_word_of_a_former_pod_is_read() -> None:
    events = [event_of(GangKey("x", 1), record) for record in decode(FORMER["termination"])]
    gone = events[-1]
    assert isinstance(gone, Gone) and (gone.flow_exit, gone.notice, gone.last_commit_step) == (0, "evict", 3)


def test_the_jobs_of_a_former_worker_say_which_gang_they_are_of() -> None:
    for index, job in enumerate(FORMER["jobs"]):
        stamped = {**job, "metadata": {**job["metadata"], "creationTimestamp": "2026-01-01T00:00:00Z"}}
        assert key_of(job) == ("00000000-0000-4000-8000-000000000001", 1)
        assert placement_of(job).node == f"node-{index}" and len(placement_of(job).devices) == 1
        assert timing_of(stamped)[1:] == (120.0, 120.0)


@pytest.fixture
def local(tmp_path: Path) -> Iterator[GangDirectory]:
    """The directory of a gang that a former worker started here."""
    files = FORMER["local"]["files"]
    order = files["order.json"]
    directory = GangDirectory.of(tmp_path, GangKey(order["run_id"], order["attempt"]))
    directory.path.mkdir(parents=True)
    directory.order.write_bytes(to_bytes(order))
    record = {**files["supervisor.json"], "process": processes.identify(os.getpid()).to_json()}
    directory.supervisor.write_bytes(to_bytes({**record, "channel": str(tmp_path / "channel.sock")}))
    yield directory


async def test_a_worker_adopts_a_gang_of_a_former_one_that_runs_here(local: GangDirectory, tmp_path: Path) -> None:
    answers = {"status": [FORMER["local"]["status"]], "events": []}

    async def met(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while line := await reader.readline():
            for answer in answers[json.loads(line)["op"]]:
                writer.write(json.dumps(answer).encode() + b"\n")
            await writer.drain()

    server = await asyncio.start_unix_server(met, tmp_path / "channel.sock")
    cluster = LocalCluster(home=tmp_path, nodes=(), clock=SystemClock())
    async with server:
        (observed,) = await cluster.adopt()
        await cluster.close()
    assert observed.placement.devices and "protocol" not in observed.launch
    kinds = [type(event) for event in observed.events]
    assert without_progress(kinds) == [Started, Committed]


async def test_a_worker_reads_how_a_gang_of_a_former_one_ended_here(local: GangDirectory, tmp_path: Path) -> None:
    local.gone.write_bytes(to_bytes(FORMER["local"]["files"]["gone.json"]))
    cluster = LocalCluster(home=tmp_path, nodes=(), clock=SystemClock())
    (observed,) = await cluster.adopt()
    await cluster.close()
    gone = observed.events[-1]
    assert isinstance(gone, Gone) and (gone.flow_exit, gone.last_commit_step) == (0, 3)


@pytest.mark.parametrize("which", ["order", "supervisor"])
async def test_a_gang_of_a_newer_dsec_is_not_touched(local: GangDirectory, tmp_path: Path, which: str) -> None:
    path: Path = getattr(local, which)
    path.write_bytes(to_bytes({**json.loads(path.read_text()), **NEWER}))
    before = {each: each.read_bytes() for each in local.path.iterdir()}
    cluster = LocalCluster(home=tmp_path, nodes=(), clock=SystemClock())
    with pytest.raises(GangTooNew, match=r"attempt 1 of run .* is of a newer DSec .*: upgrade this worker; nothing"):
        await cluster.adopt()
    await cluster.close()
    assert {each: each.read_bytes() for each in local.path.iterdir()} == before


# --- a newer image and an older worker, or the other way round -----------------------------------------------------


def test_a_former_order_is_understood() -> None:
    for job in FORMER["jobs"]:
        order = order_from_json(json.loads(variable(job, "DSEC_ORDER")))
        assert (order.key.attempt, order.request.nodes, order.start_timeout_seconds) == (1, 2, 120.0)


def variable(job: Mapping[str, Any], name: str) -> str:
    (container,) = job["spec"]["template"]["spec"]["containers"]
    return next(each["value"].replace("$$", "$") for each in container["env"] if each["name"] == name)


OpenGang = Callable[..., Outposts]


@pytest.fixture
def open_gang(tmp_path: Path) -> Iterator[OpenGang]:
    """Start outposts of this version on the former order, with `more` in it; they run a program that does nothing."""
    opened: list[Outposts] = []

    def open_one(members: int = 2, **more: Any) -> Outposts:
        orders, port = [json.loads(variable(job, "DSEC_ORDER")) for job in FORMER["jobs"]], free_port()
        path = os.pathsep.join(filter(None, [str(Path.cwd()), os.environ.get("PYTHONPATH")]))
        more = {"command": script(tmp_path, "print('user code', flush=True)"), "env": {"PYTHONPATH": path}, **more}
        told = {index: {"DSEC_ORDER": json.dumps({**order, **more})} for index, order in enumerate(orders)}
        for index, job in enumerate(FORMER["jobs"]):  # each variable of a former pod stands by itself
            (container,) = job["spec"]["template"]["spec"]["containers"]
            said = {each["name"]: each["value"] for each in container["env"] if "value" in each}
            told[index] = {**said, **told[index], "DSEC_OUTPOST_PORT": str(port)}
        order = order_from_json(orders[0])
        if members == 1:  # its leader alone
            order = replace(order, placement=replace(order.placement, members=order.placement.members[:1]))
        gang = Outposts(order=order, folder=tmp_path, port=port, own_environment=told)
        gang.start({0: "GPU-a", 1: "GPU-b"})
        opened.append(gang)
        return gang

    yield open_one
    for gang in opened:
        gang.close()


async def connected(gang: Outposts, index: int, greeting: Mapping[str, Any]) -> Any:
    """A connection to a member's outpost, once it listens, and what it answers to the greeting."""

    async def met() -> Any:
        try:
            reader, writer = await asyncio.open_connection(gang.addresses[index], gang.port)
        except OSError:
            assert gang.processes[index].poll() is None, gang.output(index)
            return None
        writer.write(json.dumps({"token": gang.token, **greeting}).encode() + b"\n")
        return reader, writer, json.loads(await reader.readline())

    return await until(met)


@pytest.mark.slow
async def test_outposts_run_a_former_order_and_answer_a_former_worker(open_gang: OpenGang) -> None:
    gang = open_gang()
    told = []
    for request in (
        {"op": "introduce", "members": {"1": gang.addresses[1]}},
        {"op": "events", "after": 0},
    ):
        reader, writer, answer = await connected(gang, 0, {"as": "channel"})
        assert answer == {"ok": True, "protocol": 1}
        writer.write(json.dumps({"id": 1, **request}).encode() + b"\n")
        told = [json.loads(await reader.readline())]
        while request["op"] == "events" and not told[-1].get("done"):
            told.append(json.loads(await reader.readline()))
        writer.close()
    assert await gang.exits() == [0, 0], gang.output(0) + gang.output(1)
    assert [record["type"] for record in told] == ["started", "devices_released", "gone"]
    assert told[-1]["flow_exit"] == 0 and "user code" in gang.output(0)


@pytest.mark.slow
async def test_a_leader_s_outpost_enlists_a_former_member(open_gang: OpenGang) -> None:
    heard: list[dict[str, Any]] = []

    async def met(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        answer, *said, farewell = FORMER["follower_said"]
        heard.append(json.loads(await reader.readline()))
        for message in (answer, *said):
            writer.write(json.dumps(message).encode() + b"\n")
        while line := await reader.readline():
            heard.append(json.loads(line))
            if heard[-1]["op"] == "release":
                writer.write(json.dumps(farewell).encode() + b"\n")
                await writer.drain()

    gang = open_gang()
    os.killpg(gang.processes[1].pid, 9)
    async with await asyncio.start_server(met, "127.77.0.9", gang.port):
        await gang.ask("introduce", members={"1": "127.77.0.9"})
        assert await gang.exits_of(0) == 0, gang.output(0)
    former, *_ = FORMER["leader_said"]
    assert {name for name in former if name not in heard[0]} == set(), "what a former member needs is said"
    assert gang.last_word()["member_exits"] == {"0": 0, "1": 0}


@pytest.mark.slow
async def test_a_member_of_an_older_dsec_than_its_leader_says_so(open_gang: OpenGang) -> None:
    gang = open_gang()
    former, *_ = FORMER["leader_said"]
    _, writer, answer = await connected(gang, 1, {**former, "token": gang.token, **NEWER})
    assert not answer["ok"] and "member 0's outpost is of a newer DSec" in answer["error"]
    writer.close()


@pytest.mark.slow
async def test_an_image_older_than_its_order_says_so_and_starts_nothing(open_gang: OpenGang) -> None:
    gang = open_gang(**NEWER)
    assert await gang.exits() == [70, 70]
    why = gang.last_word()["start_failure"]
    assert "the order for this gang is of a newer DSec" in why and "upgrade the DSec in the image" in why
    for index in (0, 1):
        assert "Traceback" not in gang.output(index) and why in gang.output(index)
        assert not gang.directory(index).path.exists()
