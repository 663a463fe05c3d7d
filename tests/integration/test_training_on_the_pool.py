"""`train` and `finetune` as they are deployed: on gangs of two members, one of which is evicted."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from dsec_blocks.model.gangs import GangState
from tests.fixtures.forking import Zygote
from tests.fixtures.prefect import PrefectServer
from tests.integration.site import Site

pytestmark = pytest.mark.slow
TRAINING = "../../flows/dsec_flows/training"
WORK = """
import os
from pathlib import Path
from time import monotonic, sleep

from dsec_blocks import gang, run

def learn(steps, begun=None):
    checkpoint = run.checkpoints(every=1000)
    state = checkpoint.restore({"sum": 0})
    run.on_evict(lambda step: checkpoint.save(step, state))
    for step in run.steps(steps):
        state["sum"] += 1
        gang.agree(0)  # the collective that a data-parallel step has
        if begun and step == 3 and os.environ["DSEC_ATTEMPT"] == "1":
            Path(begun).touch()
            until = monotonic() + 60
            while run.notice is None and monotonic() < until:
                sleep(0.01)
    checkpoint.save(steps, state)
    return {"sum": state["sum"], "rank": run.rank}
"""
TORCHRUN = """
import os, subprocess, sys

options = dict(word.lstrip("-").split("=") for word in sys.argv[1:] if word.startswith("--n") and "=" in word)
script = [word for word in sys.argv[1:] if not word.startswith("--")]
size = int(options["nproc-per-node"])
for local in range(size):
    rank = size * int(options["node-rank"]) + local
    world = size * int(options["nnodes"])
    env = {**os.environ, "RANK": str(rank), "LOCAL_RANK": str(local), "WORLD_SIZE": str(world)}
    subprocess.run([sys.executable, *script], env=env, check=True)
"""
SCRIPT = """
import json, os, sys
names = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "DSEC_MEMBER", "CUDA_VISIBLE_DEVICES")
with open(sys.argv[1], "a") as file:
    file.write(json.dumps([os.environ[name] for name in names]) + "\\n")
"""


@pytest.fixture(scope="module")
def pool(
    prefect_server: PrefectServer, zygote: Zygote | None, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Site]:
    site = Site(server=prefect_server, home=tmp_path_factory.mktemp("training"), zygote=zygote)
    site.start_worker()
    yield site
    site.close()


def report(site: Site, run: str) -> str:
    found = site.wait("its report", lambda: site.artifacts("training-report", flow_run_id={"any_": [run]}))
    return str(found[0]["data"])


def test_a_finetune_that_is_evicted_goes_on_and_the_next_goes_on_from_its_end(pool: Site, tmp_path: Path) -> None:
    work, begun = tmp_path / "work.py", tmp_path / "begun"
    work.write_text(WORK)
    gang = {"nodes": 2, "devices_per_node": 1, "grace": 20}
    common = {"model": "tiny", "function": f"{work}:learn", "launcher": "plain"}
    parameters = {**common, "parameters": {"steps": 6, "begun": str(begun)}}
    first = pool.submit(f"{TRAINING}/finetune.py:finetune", parameters=parameters, **gang)
    pool.wait("its ranks", begun.exists)
    pool.wait_gang(first, GangState.RUNNING)
    pool.ledger.wish(pool.pool, "evict", first, {}, by="ann", why="maintenance")
    pool.wait_state(first, "COMPLETED", "FAILED", "CRASHED", seconds=60)
    assert pool.state(first)[0] == "COMPLETED", pool.logs(first)
    ended = pool.wait_gang(first, GangState.ENDED)
    assert (ended.evictions, ended.attempt, ended.infrastructure_restarts) == (1, 2, 0)
    page = report(pool, first)
    assert "'sum': 6, 'rank': 0" in page and "'sum': 6, 'rank': 1" in page, page
    assert "(attempt 1)" in page and "step 6 (attempt 2)" in page, page

    second = pool.submit(f"{TRAINING}/finetune.py:finetune", parameters={**common, "parameters": {"steps": 6}}, **gang)
    pool.wait_state(second, "COMPLETED", seconds=60)
    assert "'sum': 12, 'rank': 1" in report(pool, second)


def test_torchrun_has_one_agent_on_each_member_and_starts_a_process_for_each_device(pool: Site, tmp_path: Path) -> None:
    """No torch is installed here: a module of its name does what torchrun does with what it is told."""
    package = tmp_path / "torch" / "distributed"
    package.mkdir(parents=True)
    (package.parent / "__init__.py").touch()
    (package / "__init__.py").touch()
    (package / "run.py").write_text(TORCHRUN)
    script, notes = tmp_path / "train.py", tmp_path / "notes"
    script.write_text(SCRIPT)
    run = pool.submit(
        f"{TRAINING}/train.py:train",
        parameters={"command": [str(script), str(notes)], "launcher": "torchrun"},
        nodes=2,
        devices_per_node=2,
        env={"PYTHONPATH": str(tmp_path)},
    )
    pool.wait_state(run, "COMPLETED", "FAILED", "CRASHED")
    assert pool.state(run)[0] == "COMPLETED", pool.logs(run)
    gang = pool.wait_gang(run, GangState.ENDED)
    seen = sorted(json.loads(line) for line in notes.read_text().splitlines())
    assert [row[:4] for row in seen] == [[str(n), str(n % 2), "4", str(n // 2)] for n in range(4)]
    assert [len(row[4].split(",")) for row in seen] == [2] * 4
    assert seen[0][4] == seen[1][4] != seen[2][4] == seen[3][4]
    assert (gang.attempt, gang.request.devices) == (1, 4)
