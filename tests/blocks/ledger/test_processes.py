"""Real processes that race, are killed, or are stopped and wake: the ledger stays whole each time.

T40 is k8s PR#136269 (one device for two claims under load), T51 HAMi#2640 (checked, then added).
"""

import multiprocessing
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

import pytest

from dsec_blocks.gateways.clock import SystemClock
from dsec_blocks.ledger import Election, Fence, Ledger
from dsec_blocks.model.errors import Fenced, ReservationConflict
from dsec_blocks.model.gangs import GangState
from tests.blocks.ledger.gangs import LATER, POOL, held, known, on, running, waiting
from tests.fixtures.ledgers import migrated

PROGRAM = """
import sys
from dsec_blocks.gateways.clock import SystemClock
from dsec_blocks.ledger import Fence, Ledger
from dsec_blocks.model.errors import DsecError
from tests.blocks.ledger.gangs import LATER, on
url, holder, token = sys.argv[1:4]
ledger = Ledger.open(url, clock=SystemClock())
fence = Fence("pool", holder, int(token))
def attempt(step):
    try:
        print(step(), flush=True)
    except DsecError as error:
        print(type(error).__name__, error, flush=True)
def admit():
    return ledger.admit(fence, "a", on("n1/0", "n1/1"), victims=["v"], expires_at=LATER).state
"""


def _process(url: str, fence: Fence, then: str, **environment: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", PROGRAM + then, url, fence.holder, str(fence.token)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, **environment},
    )


def _until(condition: Callable[[], Any], seconds: float = 20.0) -> Any:
    give_up = time.monotonic() + seconds
    while not (result := condition()):
        assert time.monotonic() < give_up, "it never came"
        time.sleep(0.02)
    return result


def _stopped(pid: int) -> bool:
    with open(f"/proc/{pid}/stat") as stat:
        return stat.read().rpartition(")")[2].split()[0] == "T"


def _race(url: str, pool: str, seed: int, gate: Any, results: Any) -> None:
    ledger = Ledger.open(url, clock=SystemClock())
    fence = ledger.take_lease(pool, f"racer of {pool}", seen=None)
    assert fence is not None
    ledger.enqueue(fence, [waiting(f"{pool}-{n}", pool=pool) for n in range(60)])
    rng = random.Random(seed)
    won = lost = 0
    for n in range(60):
        # In the first half everybody leaves, so that whoever comes late on a busy machine finds devices too; both
        # enter the second half, in which devices stay taken, at the same moment.
        if n in (0, 30):
            gate.wait()
        run_id = f"{pool}-{n}"
        devices = [f"n{d // 4}/{d}" for d in rng.sample(range(12), 3)]
        try:
            gang = ledger.admit(fence, run_id, on(*devices), expires_at=LATER)
            won += 1
        except ReservationConflict:
            lost += 1
            continue
        if n < 30 or rng.random() < 0.7:
            ledger.leave(fence, run_id, gang.attempt, {})
    ledger.close()
    results.put((won, lost))


@pytest.mark.slow
def test_t40_two_processes_that_race_for_the_same_devices_never_share_one(ledger: Ledger, ledger_url: str) -> None:
    spawn = multiprocessing.get_context("spawn")
    gate, results = spawn.Barrier(2), spawn.Queue()
    racers = [
        spawn.Process(target=_race, args=(ledger_url, pool, seed, gate, results))
        for seed, pool in enumerate(("red", "blue"))
    ]
    for racer in racers:
        racer.start()
    tallies = [results.get(timeout=60) for _ in racers]
    for racer in racers:
        racer.join(timeout=20)

    assert all(won + lost == 60 for won, lost in tallies)
    assert all(won for won, _lost in tallies) and any(lost for _won, lost in tallies), f"no race at all: {tallies}"
    assert ledger.check() == []
    reserved = [g for pool in ("red", "blue") for g in ledger.gangs(pool, {GangState.RESERVED})]
    devices = [uuid for gang in reserved if gang.placement for uuid in gang.placement.devices]
    assert len(devices) == len(set(devices)) == sum(len(ledger.holders(pool)) for pool in ("red", "blue"))


def test_t51_threads_that_race_with_one_ledger_never_share_a_device(ledger: Ledger, fence: Fence) -> None:
    from concurrent.futures import ThreadPoolExecutor

    ledger.enqueue(fence, [waiting(f"r{n}") for n in range(24)])

    def admit(n: int) -> bool:
        try:
            ledger.admit(fence, f"r{n}", on(f"n1/{n % 8}", f"n1/{(n + 1) % 8}"), expires_at=LATER)
        except ReservationConflict:
            return False
        return True

    with ThreadPoolExecutor(8) as threads:
        won = sum(threads.map(admit, range(24)))

    assert 1 <= won <= 4
    assert len(held(ledger)) == 2 * won
    assert ledger.check() == []


@pytest.mark.parametrize("mode", ["kill_before", "kill_after"])
def test_a_process_killed_at_the_commit_of_an_admission_leaves_all_or_nothing(
    ledger: Ledger, fence: Fence, ledger_url: str, mode: str
) -> None:
    running(ledger, fence, "v", "n1/0")
    ledger.enqueue(fence, [waiting("a")])

    process = _process(ledger_url, fence, "attempt(admit)", DSEC_FAULT=f"ledger.admit:{mode}")
    out, err = process.communicate(timeout=60)

    assert (process.returncode, out) == (-signal.SIGKILL, ""), err
    applied = mode == "kill_after"
    assert known(ledger, "a").state is (GangState.RESERVED if applied else GangState.WAITING)
    assert known(ledger, "v").state is (GangState.EVICTING if applied else GangState.RUNNING)
    assert (len(held(ledger)), len(ledger.evictions(POOL))) == ((3, 1) if applied else (1, 0))
    assert ledger.check() == []
    if not applied:
        ledger.admit(fence, "a", on("n1/0", "n1/1"), victims=["v"], expires_at=LATER)


def test_a_leader_that_was_stopped_is_fenced_when_it_wakes(ledger: Ledger, ledger_url: str) -> None:
    fence = ledger.take_lease(POOL, "sleeper", seen=None)
    assert fence is not None
    ledger.enqueue(fence, [waiting("a")])
    process = _process(ledger_url, fence, "ledger.beat(fence); print('ready', flush=True); input(); attempt(admit)")
    assert process.stdout is not None and process.stdin is not None
    assert process.stdout.readline() == "ready\n"
    os.kill(process.pid, signal.SIGSTOP)
    process.stdin.write("go\n")
    process.stdin.flush()

    standby = Election(ledger, POOL, "standby", 0.3, SystemClock())
    assert standby.step() is None
    taken = _until(standby.step)
    assert taken == (POOL, "standby", fence.token + 1)

    os.kill(process.pid, signal.SIGCONT)
    out, err = process.communicate(timeout=30)
    assert out.startswith("Fenced sleeper (token 1) no longer leads pool pool: standby does (token 2)"), out + err
    assert known(ledger, "a").state is GangState.WAITING
    assert held(ledger) == set()
    ledger.admit(taken, "a", on("n1/0"), expires_at=LATER)


@pytest.mark.slow
def test_a_leader_stopped_inside_a_transaction_does_not_block_its_successor_on_postgres(
    postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    ledger = Ledger.open(postgres_url, clock=SystemClock())
    fence = ledger.take_lease(POOL, "sleeper", seen=None)
    assert fence is not None
    ledger.enqueue(fence, [waiting("a")])
    patch = "import dsec_blocks.ledger.opening as opening\nopening.BUSY_SECONDS = 1\n"
    program = "ledger.close(); ledger = Ledger.open(url, clock=SystemClock()); attempt(admit); attempt(admit)"
    process = _process(postgres_url, fence, patch + program, DSEC_FAULT="ledger.admit:stall:1")
    _until(lambda: _stopped(process.pid))

    standby = Election(ledger, POOL, "standby", 0.3, SystemClock())
    taken = _until(standby.step)

    os.kill(process.pid, signal.SIGCONT)
    out, err = process.communicate(timeout=30)
    first, second = out.splitlines()
    assert first.startswith(("LedgerError", "LedgerUnreachable")), out + err
    assert second.startswith("Fenced"), out + err
    assert known(ledger, "a").state is GangState.WAITING
    ledger.admit(taken, "a", on("n1/0"), expires_at=LATER)
    ledger.close()


def test_a_leader_stopped_inside_a_transaction_on_sqlite_commits_before_anybody_can_replace_it(tmp_path) -> None:
    url = migrated(tmp_path / "ledger.db")
    ledger = Ledger.open(url, clock=SystemClock())
    fence = ledger.take_lease(POOL, "sleeper", seen=None)
    assert fence is not None
    ledger.enqueue(fence, [waiting("a")])
    process = _process(url, fence, "attempt(admit)", DSEC_FAULT="ledger.admit:stall")
    _until(lambda: _stopped(process.pid))
    assert known(ledger, "a").state is GangState.WAITING, "readers see the state before"

    os.kill(process.pid, signal.SIGCONT)
    seen = ledger.lease(POOL)
    taken = ledger.take_lease(POOL, "standby", seen=seen)
    out, err = process.communicate(timeout=30)

    assert out == "reserved\n", out + err
    assert taken is not None
    assert known(ledger, "a").state is GangState.RESERVED
    with pytest.raises(Fenced):
        ledger.beat(fence)
    ledger.close()
