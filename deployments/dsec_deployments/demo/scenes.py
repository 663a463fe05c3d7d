"""The scenario: what happens, in order, and what is claimed of it. One function a scene, one list at the end."""

from collections import Counter
from collections.abc import Callable
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Any

from dsec_blocks.gateways import processes
from dsec_blocks.model.errors import DsecError
from dsec_blocks.model.gangs import HOLDING_STATES, GangState
from dsec_blocks.model.names import STATE_WAITING_AGAIN
from dsec_blocks.model.reasons import ReasonCode
from dsec_blocks.model.requests import GangRequest
from dsec_blocks.model.teams import Team
from dsec_deployments import background as backgrounds
from dsec_deployments import startup
from dsec_deployments.demo.brute_force import cheapest_victims
from dsec_deployments.demo.losses import Curve, largest_difference, read_curve
from dsec_deployments.demo.stage import POOL, SceneFailed, Stage, Submitted, add_teams, deploy
from dsec_workers.lifecycle.records import running_gang
from dsec_workers.scheduling.policy import Policy
from dsec_workers.scheduling.snapshot import RunningGang

STEPS = 200
SHORT = 60
"""Steps of a reference run that only has to differ."""
STEP_SECONDS = 0.2
LOW_SECONDS = 40.0
"""How long the gangs that give way work besides the fine-tune."""
LOW_PRIORITY = 40
"""Of the gangs that give way: above the small ones, which fill what is left, and below the urgent ones."""
SAME = 1e-6
DIFFERENT = 1e-3


def set_up_teams_and_deployments(stage: Stage) -> None:
    """Four teams share the pool: research, vision, speech, and ops for what cannot wait"""
    add_teams(
        stage,
        [
            Team(name="research", nominal_devices=12, highest_priority=50),
            Team(name="vision", nominal_devices=0, highest_priority=50),
            Team(name="speech", nominal_devices=0, highest_priority=50),
            Team(name="ops", nominal_devices=8, highest_priority=100),
        ],
    )
    from prefect.flows import load_flow_from_entrypoint

    from dsec_deployments.demo import flows

    digits = _digits_file()
    for flow in (flows.background, flows.small, flows.urgent):
        deploy(stage, flow, entrypoint=f"{flows.__name__}.{flow.fn.__name__}", name=flow.name)
    finetune: Any = load_flow_from_entrypoint(f"{digits}:digits")
    deploy(stage, finetune, entrypoint="digits.py:digits", directory=digits.parent, name="finetune")


def a_gang_that_never_fits(stage: Stage) -> None:
    """A gang larger than the cluster is refused with its reason"""
    run = stage.submit("background", "never-fits", team="research", nodes=4, devices_per_node=4)
    began = stage.clock.monotonic()
    state = stage.wait(
        "the reason of the gang that never fits",
        lambda: (state := stage.state(run))["message"] and state["type"] == "SCHEDULED" and state,
        seconds=20,
    )
    seconds = round(stage.clock.monotonic() - began, 2)
    gang = stage.gang(run)
    told = gang is not None and gang.reason_code == ReasonCode.NEVER_FITS and gang.attempt == 0
    stage.claims.make("a gang that can never fit is told so and starts nothing", told, seconds, "s until told")
    stage.tell(state["message"])
    stage.notes["never-fits"] = state["message"]


def the_same_training_uninterrupted(stage: Stage) -> None:
    """The training run alone, for reference; then with another seed, and without exchanging gradients"""
    references: dict[str, dict[str, object]] = {
        "uninterrupted": {},
        "another seed": {"seed": 1, "steps": SHORT},
        "no gradient exchange": {"exchange_gradients": False, "steps": SHORT},
    }
    runs, began = {}, stage.clock.monotonic()
    for name, parameters in references.items():
        file = stage.home / f"losses-{name.replace(' ', '-')}.jsonl"
        run = stage.submit(
            "finetune",
            f"reference-{name.replace(' ', '-')}",
            team="research",
            parameters={"steps": STEPS, "losses": str(file), **parameters},
        )
        runs[name] = (run, file)
    for name, (run, file) in runs.items():
        _completed(stage, run, seconds=90)
        stage.recording.losses[name] = read_curve(file).loss
    stage.go_along_with(stage.clock.monotonic() - began)
    stage.notes["reference"] = read_curve(runs["uninterrupted"][1])
    for name in ("another seed", "no gradient exchange"):
        apart = largest_difference(stage.notes["reference"].until(SHORT), read_curve(runs[name][1]))
        differs = DIFFERENT <= apart < float("inf")
        stage.claims.make(f"{name}: the loss differs", differs, apart, "largest difference")


def a_full_pool(stage: Stage) -> None:
    """A fine-tune on two nodes and three more gangs of low priority fill the pool; two teams queue small gangs"""
    stage.notes["losses"] = stage.home / "losses-finetune.jsonl"
    parameters = {
        "steps": STEPS,
        "losses": str(stage.notes["losses"]),
        "checkpoint_every": 20,
        "step_seconds": STEP_SECONDS * stage.pace,
    }
    finetune = stage.submit(
        "finetune",
        "finetune",
        team="research",
        parameters=parameters,
        priority=LOW_PRIORITY,
        **stage.venue.job_variables,
    )
    stage.wait_running(finetune, seconds=60)
    stage.wait("the first checkpoint of finetune", partial(_first_commit, stage, finetune), seconds=60)
    # One node is empty now, and the gang that needs a whole one must come first.
    low = [_background(stage, "stale", devices_per_node=4, checkpoint_every=None)]
    stage.wait_running(low[0])
    low += [
        _background(stage, "steady", devices_per_node=3, checkpoint_every=60),
        _background(stage, "frugal", devices_per_node=3, checkpoint_every=5, snapshot_on_notice=True),
    ]
    for run in low:
        stage.wait_running(run)
        stage.wait(f"the first checkpoint of {run.name}", partial(_first_commit, stage, run), seconds=30)
    stage.notes["small"] = [
        stage.submit("small", f"{team}-{number}", team=team)
        for number in range(stage.venue.small_gangs // 2)
        for team in ("vision", "speech")
    ]
    held = sum(holding.turn == 0 for holding in stage.ledger.holders(POOL))
    stage.claims.make("every GPU is in use, each by one gang", held == 12, held, "GPUs")
    members = len({holding.node for holding in stage.ledger.holders(POOL) if holding.run_id == finetune.id})
    stage.claims.make("the fine-tune trains on two nodes", members == 2, members, "members")
    queued = stage.wait(
        "the small gangs to be in line",
        lambda: sum(_waits(stage, run) for run in stage.notes["small"]) == stage.venue.small_gangs,
        seconds=30,
    )
    count = stage.venue.small_gangs
    stage.claims.make(f"{count} small gangs of two teams wait in line", bool(queued), count, "gangs")


def an_urgent_gang_arrives(stage: Stage) -> None:
    """An urgent gang arrives: the cheapest gang gives way, the one with a stale checkpoint is spared"""
    _preempt(stage, "urgent", nodes=1, devices_per_node=3, priority=80, parameters={"seconds": 15.0 * stage.pace})
    spared = stage.gang(stage.runs["stale"])
    held = spared is not None and spared.evictions == 0 and spared.state is GangState.RUNNING
    stage.claims.make("the gang with the stale checkpoint is spared", held)


def the_fine_tune_gives_way(stage: Stage) -> None:
    """A second urgent gang needs two nodes: now it is the fine-tune's turn"""
    stage.wait("the fine-tune to be well under way", lambda: _last_step(stage) >= STEPS // 4, seconds=40)
    stage.wait(
        "the fine-tune to be the cheapest to evict", partial(_is_cheapest, stage, stage.runs["finetune"]), seconds=20
    )
    _preempt(stage, "urgent-two-nodes", nodes=2, devices_per_node=1, priority=90, parameters={"seconds": 1.0})
    finetune = stage.runs["finetune"]
    state = stage.wait(
        "the fine-tune's page to say who preempted it", partial(_preempted_state, stage, finetune), seconds=30
    )
    message = state["message"] or ""
    stage.claims.make(
        "the fine-tune is back in line, and its page says who preempted it and where it resumes",
        "urgent-two-nodes" in message and "resumes from step" in message,
        remark=message,
    )
    gang = stage.gang(finetune)
    stage.recording.resumes_at = gang.last_step if gang else None


def a_cancel_races_a_reason(stage: Stage) -> None:
    """Runs are cancelled in the very moment in which their reason is rewritten, and stay cancelled"""
    runs = [
        stage.submit("small", f"unwanted-{number}", team=f"newcomer-{number}", nodes=4, devices_per_node=4)
        for number in range(4)
    ]
    for run in runs:
        stage.wait(f"the first reason of {run.name}", partial(_reason, stage, run), seconds=20)
    for number, run in enumerate(runs):
        before = _reason(stage, run)
        add_teams(stage, [Team(name=f"newcomer-{number}", nominal_devices=0)])
        stage.wait(f"the reason of {run.name} to change", partial(_reason_other_than, stage, run, before), seconds=20)
        body = {"state": {"type": "CANCELLING", "name": "Cancelling"}, "force": False}
        stage.prefect.write("POST", f"flow_runs/{run.id}/set_state", body, at="demo.run.cancel")
    for run in runs:
        stage.wait(f"{run.name} to leave the line", partial(_left_the_line, stage, run), seconds=20)
    stays = sum(stage.state(run)["type"] == "CANCELLED" for run in runs)
    stage.claims.make("cancelled while its reason was rewritten: stays cancelled", stays == len(runs), stays, "runs")


def the_worker_is_killed(stage: Stage) -> None:
    """The worker is killed with -9; its successor adopts every gang"""
    finetune = stage.runs["finetune"]
    stage.wait_running(finetune, seconds=60)
    stage.wait(
        "the fine-tune to make steps again", lambda: _last_step(stage) > (stage.recording.resumes_at or 0), seconds=40
    )
    worker = backgrounds.find(stage.home, "worker")
    if worker is None:
        raise SceneFailed("there is no worker to kill")
    before = {gang.run_id: gang for gang in stage.ledger.gangs(POOL, {GangState.RUNNING})}
    lease = stage.ledger.lease(POOL)
    processes.signal_process(worker.process, 9, at="demo.worker.kill")
    killed = stage.clock.monotonic()
    stage.recording.mark(stage.clock.now(), "worker killed with -9")
    startup.bring_up(stage.installation, progress=stage.tell, note=lambda _: None, with_project=False)
    stage.wait("the successor to lead", lambda: stage.ledger.lease(POOL) != lease, seconds=30)
    seconds = round(stage.clock.monotonic() - killed, 1)
    stage.recording.mark(stage.clock.now(), "successor leads")
    kept = 0
    for run_id, gang in before.items():
        now = stage.ledger.gang(run_id)
        kept += (
            now is not None
            and now.attempt == gang.attempt
            and now.infrastructure_restarts == gang.infrastructure_restarts
        )
    stage.claims.make("its successor adopts every running gang", bool(before) and kept == len(before), kept, "gangs")
    stage.claims.make("a successor leads within 30 s", seconds <= 30, seconds, "s")


def everything_ends_well(stage: Stage) -> None:
    """The fine-tune resumes where it stopped; everything ends; the books are clean"""
    _completed(stage, stage.runs["finetune"], seconds=90)
    curve: Curve = read_curve(stage.notes["losses"])
    stage.recording.losses["evicted and resumed"] = curve.loss
    apart = largest_difference(curve, stage.notes["reference"])
    stage.claims.make(
        "across the eviction the loss equals the uninterrupted run at every step",
        apart <= SAME,
        apart,
        "largest difference",
    )
    missing = STEPS - len(curve.loss)
    stage.claims.make(
        "the fine-tune resumes at its step: none is lost or run twice",
        not curve.repeated and not missing,
        len(curve.repeated) + missing,
        "steps",
    )
    gang = stage.gang(stage.runs["finetune"])
    stage.claims.make(
        "the fine-tune was evicted once", gang is not None and gang.evictions == 1, gang.evictions if gang else 0
    )
    finished = sum(stage.wait_ended(run, seconds=90)["type"] == "COMPLETED" for run in stage.notes["small"])
    count = stage.venue.small_gangs
    stage.claims.make(f"all {count} small gangs complete", finished == count, finished, "gangs")
    for name in ("urgent", "urgent-two-nodes", "frugal", "steady", "stale"):
        _completed(stage, stage.runs[name], seconds=90)
    stage.wait("the last devices to be released", lambda: not _holding(stage), seconds=30)
    violations = stage.ledger.check(POOL, observed=())
    held = len(stage.ledger.holders(POOL))
    stage.claims.make(
        "afterwards nothing is held and the ledger keeps every rule", not violations and held == 0, held, "reservations"
    )


def _preempt(stage: Stage, name: str, **shape: Any) -> None:
    """Submit an urgent gang, hold the plan's victims against brute force, and see it run."""
    before, free = _running(stage), _free(stage)
    began = stage.clock.now()
    run = stage.submit("urgent", name, team="ops", **shape)
    stage.recording.mark(began, f"{name} arrives")
    decision = stage.wait(
        f"{name} to be admitted",
        lambda: next(
            (d for d in stage.ledger.decisions(POOL, run_id=run.id) if d.stage == "plan" and d.outcome == "admit"), None
        ),
        seconds=30,
    )
    gang = stage.gang(run)
    assert gang is not None
    best = cheapest_victims(gang.request, free=free, running=before, policy=Policy(), now=decision.at)
    chosen = frozenset(victim["run_id"] for victim in decision.detail["victims"])
    names = {gang.run_id: gang.name for gang in stage.ledger.gangs(POOL)}
    price = sum(victim["cost"] for victim in decision.detail["victims"])
    stage.claims.make(
        f"{name}: the victims are the cheapest of all {best.tried if best else 0} sets (brute force agrees)",
        best is not None and bool(chosen) and best.victims == chosen,
        round(price, 1),
        "device-seconds",
        remark="evicts " + ", ".join(sorted(names.get(run_id, run_id) for run_id in chosen)),
    )
    stage.wait(f"{name} to run", partial(_is_running, stage, run), seconds=60)
    started = next(s for s in stage.states(run) if s["type"] == "RUNNING")
    seconds = round(datetime.fromisoformat(started["timestamp"].replace("Z", "+00:00")).timestamp() - began, 2)
    stage.claims.make(f"{name} runs", True, seconds, "s from submit to its first line")


def _background(stage: Stage, name: str, *, devices_per_node: int, **parameters: object) -> Submitted:
    return stage.submit(
        "background",
        name,
        team="research",
        parameters={"seconds": LOW_SECONDS * stage.pace, **parameters},
        devices_per_node=devices_per_node,
        priority=LOW_PRIORITY,
        **stage.venue.job_variables,
    )


def _running(stage: Stage) -> list[RunningGang]:
    holdings = stage.ledger.holders(POOL)
    gangs = stage.ledger.gangs(POOL, HOLDING_STATES)
    return [running_gang(gang, holdings, for_run={}) for gang in gangs if gang.placement]


def _preempted_state(stage: Stage, run: Submitted) -> dict[str, Any] | None:
    again = [state for state in stage.states(run) if state["name"] == STATE_WAITING_AGAIN]
    return again[0] if again else None


def _is_cheapest(stage: Stage, run: Submitted) -> bool:
    two_nodes = GangRequest(nodes=2, devices_per_node=1, priority=90)
    now = stage.clock.now()
    best = cheapest_victims(two_nodes, free=_free(stage), running=_running(stage), policy=Policy(), now=now)
    return best is not None and best.victims == {run.id}


def _is_running(stage: Stage, run: Submitted) -> bool:
    return stage.state(run)["type"] in ("RUNNING", "COMPLETED")


def _free(stage: Stage) -> dict[str, int]:
    held = Counter(holding.node for holding in stage.ledger.holders(POOL) if holding.turn == 0)
    return {node.name: len(node.devices) - held[node.name] for node in stage.ledger.nodes(POOL)}


def _holding(stage: Stage) -> bool:
    return bool(stage.ledger.gangs(POOL, {*HOLDING_STATES, GangState.LEAVING}))


def _first_commit(stage: Stage, run: Submitted) -> float | None:
    gang = stage.gang(run)
    return gang.first_commit_at if gang else None


def _waits(stage: Stage, run: Submitted) -> bool:
    gang = stage.gang(run)
    return gang is not None and gang.state is GangState.WAITING


def _reason(stage: Stage, run: Submitted) -> str | None:
    gang = stage.gang(run)
    return gang.reason_code if gang else None


def _reason_other_than(stage: Stage, run: Submitted, before: str | None) -> bool:
    return _reason(stage, run) != before


def _left_the_line(stage: Stage, run: Submitted) -> bool:
    return not _waits(stage, run)


def _last_step(stage: Stage) -> int:
    steps = read_curve(stage.notes["losses"]).steps
    return steps[-1] if steps else -1


def _completed(stage: Stage, run: Submitted, *, seconds: float) -> dict[str, object]:
    state = stage.wait_ended(run, seconds=seconds)
    if state["type"] != "COMPLETED":
        raise SceneFailed(f"run {run.name} ended as {state['name']}: {state.get('message')}")
    return state


def _digits_file() -> Path:
    import dsec_flows

    found = Path(str(dsec_flows.__file__)).parents[1] / "examples" / "digits.py"
    if not found.exists():
        raise DsecError(f"the demo trains {found}, which is not there; run it from a clone of the repository")
    return found


SCENES: list[Callable[[Stage], None]] = [
    set_up_teams_and_deployments,
    a_gang_that_never_fits,
    the_same_training_uninterrupted,
    a_full_pool,
    an_urgent_gang_arrives,
    the_fine_tune_gives_way,
    a_cancel_races_a_reason,
    the_worker_is_killed,
    everything_ends_well,
]
