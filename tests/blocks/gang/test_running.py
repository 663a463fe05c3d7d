"""`gang.run` and `run` inside ranks: results, errors, and the one step before which all stop."""

import json
import os
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from dsec_blocks.gang import GangRunError, RankOutcome, Results, current_gang, run
from dsec_blocks.gang.membership import Membership
from dsec_blocks.gang.running import Run
from dsec_blocks.model import names
from dsec_blocks.model.errors import Evicted, InvalidRequest, SubmitRefused
from tests.blocks.gang.supervisor_double import SupervisorDouble

pytestmark = pytest.mark.slow


@pytest.fixture
def in_a_flow(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A local call of a flow, without a Prefect server."""
    monkeypatch.setattr("dsec_blocks.gang.current.flow_context", lambda: object())
    monkeypatch.setattr("dsec_blocks.gang.membership._known", None)
    yield
    monkeypatch.setattr("dsec_blocks.gang.membership._known", None)


def greet(name: str, *, loud: bool = False) -> dict[str, Any]:
    return {"text": f"{name}{'!' if loud else ''}", "rank": run.rank, "world": run.world_size, "pid": os.getpid()}


def fail() -> None:
    raise ValueError("the data is upside down")


class TestOutsideAGang:
    def test_a_function_runs_in_one_child_with_its_arguments(self, in_a_flow: None) -> None:
        results = current_gang().run(greet, "hello", loud=True)
        assert len(results) == 1
        assert results[0] == {"text": "hello!", "rank": 0, "world": 1, "pid": results[0]["pid"]}
        assert results[0]["pid"] != os.getpid()

    def test_a_command_runs_with_the_rank_environment(self, in_a_flow: None, tmp_path: Path) -> None:
        code = f"import os; open({str(tmp_path / 'out')!r}, 'w').write(' '.join([os.environ['RANK'], os.environ['X']]))"
        assert current_gang().run([sys.executable, "-c", code], env={"X": "7"}) == [0]
        assert (tmp_path / "out").read_text() == "0 7"

    def test_a_failing_function_brings_its_traceback(self, in_a_flow: None) -> None:
        with pytest.raises(GangRunError) as caught:
            current_gang().run(fail)
        assert "gang.run(fail): rank 0 of 1 failed" in str(caught.value)
        assert "ValueError: the data is upside down" in str(caught.value)
        assert 'raise ValueError("the data is upside down")' in str(caught.value)

    def test_a_command_that_does_not_exist_is_named(self, in_a_flow: None) -> None:
        with pytest.raises(GangRunError, match="cannot run 'no-such-program'"):
            current_gang().run("no-such-program --flag")

    @pytest.mark.parametrize(
        ("arguments", "message"),
        [
            ({"per": "card"}, "per='card' is neither"),
            ({"launcher": "mpi"}, "launcher='mpi' is not one of"),
            ({"launcher": "torchrun"}, "torchrun launches commands"),
        ],
    )
    def test_a_call_that_makes_no_sense_is_refused_before_anything_starts(
        self, in_a_flow: None, arguments: dict[str, Any], message: str
    ) -> None:
        with pytest.raises(InvalidRequest, match=message):
            current_gang().run(greet, "x", **arguments)

    def test_an_argument_that_cannot_travel_is_refused_with_the_reason(self, in_a_flow: None) -> None:
        with pytest.raises(InvalidRequest, match="cannot be sent to the ranks"):
            current_gang().run(greet, threading.Lock())

    def test_a_script_that_nobody_can_import_travels_by_value(self, in_a_flow: None, tmp_path: Path) -> None:
        from prefect.utilities.importtools import load_script_as_module

        (tmp_path / "neighbour.py").write_text("FACTOR = 3\n")
        script = tmp_path / "my flow.py"
        script.write_text("OFFSET = 1\ndef work(x):\n    import neighbour\n    return x * neighbour.FACTOR + OFFSET\n")
        work = load_script_as_module(str(script)).work
        sys.path.insert(0, str(tmp_path))
        try:
            assert current_gang().run(work, 2) == [7]
        finally:
            sys.path.remove(str(tmp_path))

    def test_steps_run_through_and_nothing_evicts(self) -> None:
        alone = Run()
        assert list(alone.steps(3)) == [0, 1, 2]
        assert alone.should_checkpoint() is False


def loop(log: str, steps: int, late: bool) -> str:
    """A training loop with a collective in each step (`agree`); rank 1 is slower to look."""
    from dsec_blocks.gang import agree, run

    def hook(step: int) -> None:
        with open(f"{log}.evict", "a") as file:
            file.write(f"{run.rank} {step}\n")

    run.on_evict(hook)
    for step in run.steps(steps):
        if late and run.rank == 1:
            time.sleep(0.01)
        with open(log, "a") as file:
            file.write(f"{run.rank} {step}\n")
        agree(step)
        run.report(step=step, loss=1.0 / (step + 1))
    return f"done {run.rank}"


@pytest.fixture
def gang_of_two(tmp_path: Path) -> Iterator[SupervisorDouble]:
    supervisor = SupervisorDouble(tmp_path, world_size=2)
    yield supervisor
    supervisor.close()


class TestStoppingTogether:
    @pytest.mark.parametrize("noticed_by", ["rank 0 first", "rank 1 first"])
    @pytest.mark.parametrize("late", [False, True])
    def test_ranks_that_hear_at_different_times_stop_before_the_same_step(
        self, gang_of_two: SupervisorDouble, tmp_path: Path, noticed_by: str, late: bool
    ) -> None:
        """Correction 4: members that each poll a flag differ by a step and wait for each other for ever."""
        op = "agree" if noticed_by == "rank 0 first" else "step"

        def evict_in_the_middle(request: dict[str, Any]) -> None:
            if request["op"] == op and len(gang_of_two.heard("step")) >= 20 and gang_of_two.notice is None:
                gang_of_two.notify()

        gang_of_two.on_request = evict_in_the_middle
        gang_of_two.start(loop, str(tmp_path / "log"), 10_000, late)
        assert gang_of_two.wait() == [75, 75]
        done = [tuple(map(int, line.split())) for line in (tmp_path / "log").read_text().splitlines()]
        last = {rank: max(step for r, step in done if r == rank) for rank in (0, 1)}
        assert last[0] == last[1] == gang_of_two.stop_before - 1
        hooks = sorted((tmp_path / "log.evict").read_text().splitlines())
        assert hooks == [f"0 {last[0] + 1}", f"1 {last[0] + 1}"]
        assert len(done) == len(set(done))
        assert {said["rank"] for said in gang_of_two.heard("snapshotting")} == {0, 1}

    def test_a_run_that_ends_before_the_stop_step_simply_ends(
        self, gang_of_two: SupervisorDouble, tmp_path: Path
    ) -> None:
        gang_of_two.on_request = lambda request: (
            gang_of_two.notify()
            if request["op"] == "step" and request["step"] == 4 and not gang_of_two.notice
            else None
        )
        gang_of_two.start(loop, str(tmp_path / "log"), 5, False)
        codes = gang_of_two.wait()
        assert codes in ([0, 0], [75, 75])
        assert codes == [0, 0] or gang_of_two.stop_before < 5

    def test_progress_and_the_ability_to_snapshot_are_told(self, gang_of_two: SupervisorDouble, tmp_path: Path) -> None:
        gang_of_two.start(loop, str(tmp_path / "log"), 30, False)
        assert gang_of_two.wait() == [0, 0]
        reports = gang_of_two.heard("report")
        assert {"has_on_evict": True}.items() <= reports[0].items()
        assert reports[-1]["step"] == 29
        assert reports[-1]["metrics"] == {"loss": pytest.approx(1 / 30)}
        assert [gang_of_two.result(rank) for rank in (0, 1)] == ["done 0", "done 1"]


class _Stream:
    """Stands in for the channel: answers `run` with prepared lines."""

    def __init__(self, lines: list[dict[str, Any]]) -> None:
        self.lines, self.asked = lines, {}
        self.notice = {"reason": "preempted by urgent"}

    def stream(self, op: str, **fields: Any) -> Iterator[dict[str, Any]]:
        self.asked = {"op": op, **fields}
        yield from self.lines


class TestInAGang:
    def gang_with(self, monkeypatch: pytest.MonkeyPatch, lines: list[dict[str, Any]], **env: str) -> Any:
        me = Membership(
            env={
                names.ENV_CHANNEL: "/x", names.ENV_REQUEST: json.dumps(_request()),
                names.ENV_PLACEMENT: "[]", **env,
            }
        )  # fmt: skip
        me.__dict__["channel"] = _Stream(lines)
        monkeypatch.setattr("dsec_blocks.gang.current.membership", lambda: me)
        return current_gang()

    def test_results_come_in_rank_order(self, monkeypatch: pytest.MonkeyPatch) -> None:
        lines = [{"rank": r, "member": r, "exit": 0, "result": None, "error": None} for r in (2, 0, 1)]
        gang = self.gang_with(monkeypatch, [*lines, {"done": True, "evicted": False}])
        results = gang.run("true")
        assert [outcome.rank for outcome in results.outcomes] == [0, 1, 2]

    def test_a_gang_that_left_on_a_notice_is_evicted_whatever_its_ranks_said(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        lines = [
            {"rank": 0, "member": 0, "exit": 75, "result": None, "error": None},
            {"rank": 1, "member": 1, "exit": 1, "result": None, "error": {"type": "OSError", "message": "peer gone"}},
            {"done": True, "evicted": True},
        ]
        with pytest.raises(Evicted, match="preempted by urgent"):
            self.gang_with(monkeypatch, lines).run("true")

    def test_each_failed_rank_is_named(self, monkeypatch: pytest.MonkeyPatch) -> None:
        lines = [
            {"rank": 0, "member": 0, "exit": 0, "result": None, "error": None},
            {"rank": 1, "member": 1, "exit": -9, "result": None, "error": None},
            {"rank": 2, "member": 1, "exit": 3, "result": None, "error": None},
            {"done": True, "evicted": False},
        ]
        with pytest.raises(GangRunError) as caught:
            self.gang_with(monkeypatch, lines).run("true")
        text = str(caught.value)
        assert "ranks 1, 2 of 3 failed" in text
        assert "rank 1 (member 1) was killed by signal 9" in text and "rank 2 (member 1) exited with status 3" in text

    def test_gang_run_inside_a_rank_is_refused(self, monkeypatch: pytest.MonkeyPatch) -> None:
        gang = self.gang_with(monkeypatch, [], RANK="0", WORLD_SIZE="1")
        with pytest.raises(SubmitRefused, match="inside a rank"):
            gang.run("true")


def test_an_error_of_ranks_survives_pickling() -> None:
    import pickle

    error = GangRunError([RankOutcome(rank=1, member=0, exit=2)], what="gang.run(x)")
    assert str(pickle.loads(pickle.dumps(error))) == str(error)
    assert Results([RankOutcome(rank=0, member=0, exit=0, value=5)]) == [5]


def test_the_rank_that_raised_is_named_before_those_that_were_stopped_because_of_it() -> None:
    error = GangRunError(
        [
            RankOutcome(rank=0, member=0, exit=-15),
            RankOutcome(rank=1, member=0, exit=1, error={"type": "ValueError", "message": "the cause"}),
        ]
    )
    assert str(error).index("rank 1 (member 0) ValueError: the cause") < str(error).index(
        "rank 0 (member 0) was killed"
    )


def _request() -> dict[str, Any]:
    from dsec_blocks.model.requests import GangRequest

    return GangRequest().to_json()
