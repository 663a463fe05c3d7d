"""`dsec explain`: why a run is where it is, from first submit to last state."""

from __future__ import annotations

import datetime
from typing import TYPE_CHECKING, Any

from dsec_deployments.cli.options import Json, Pool, Run

if TYPE_CHECKING:
    from collections.abc import Sequence

    from dsec_blocks.ledger import Decision
    from dsec_blocks.model.gangs import Gang
    from dsec_deployments.cli.session import Session


def explain(run: Run, pool: Pool = None, json: Json = False) -> None:
    """Tell a run's story: its states, the reason it waits, every decision about it, its evictions, what it used.

    Example: [bold]dsec explain bronze-otter[/]
    """
    from dsec_deployments.cli.output import print_json
    from dsec_deployments.cli.session import session

    with session(pool) as s:
        told = story(s, run)
    if json:
        print_json(told)
        return
    _print(told)


def story(s: Session, text: str) -> dict[str, Any]:
    """Everything that Prefect and the ledger know of a run."""
    from dsec_blocks.model.gangs import CARDS
    from dsec_deployments.cli.queue import waiting
    from dsec_deployments.runs import find_run
    from dsec_workers.lifecycle.start_split import start_split

    found = find_run(s.prefect, text, pool=s.pool)
    gang = s.ledger.gang(found["id"])
    states = s.prefect.get(f"flow_run_states/?flow_run_id={found['id']}") or []
    decisions = s.ledger.decisions(s.pool, run_id=found["id"], limit=200)
    evictions = [e for e in s.ledger.evictions(s.pool, open_only=False) if found["id"] in (e.run_id, e.for_run)]
    line: dict[str, Any] = next((row for row in waiting(s) if row["run_id"] == found["id"]), {}) if gang else {}
    return {
        "run_id": found["id"],
        "run": found["name"],
        "prefect_state": {
            "type": found["state_type"],
            "name": found["state_name"],
            "message": (found.get("state") or {}).get("message"),
        },
        "states": [
            {"at": state["timestamp"], "name": state["name"], "message": state.get("message")}
            for state in sorted(states, key=lambda state: state["timestamp"])
        ],
        "gang": None
        if gang is None
        else {
            "state": gang.state,
            "team": gang.team,
            "created_by": gang.created_by,
            "shape": gang.request.describe(),
            "request": gang.request.to_json(),
            "attempt": gang.attempt,
            "evictions": gang.evictions,
            "infrastructure_restarts": gang.infrastructure_restarts,
            "placement": gang.placement.to_json() if gang.placement else None,
            "cards": gang.launch.get(CARDS) or {},
            "reason_code": gang.reason_code,
            "reason": gang.reason,
            "last_step": gang.last_step,
            "last_commit_at": gang.last_commit_at,
            "checkpoint_seconds": gang.checkpoint_seconds,
            "restart_seconds": gang.restart_seconds,
            **{name: line.get(name) for name in ("position", "eta", "factors")},
        },
        "decisions": [
            {"at": d.at, "stage": d.stage, "outcome": d.outcome, "why": d.why, "detail": d.detail}
            | {"policy_version": d.policy_version, "input_digest": d.input_digest}
            for d in sorted(decisions, key=lambda decision: decision.at)
        ],
        "evictions": evictions,
        "data": data_known(s, gang, decisions) if gang and gang.request.inputs else [],
        "failures": failures_known(s, gang, decisions) if gang else [],
        "start": [
            {"stage": stage.name, "seconds": stage.seconds, "text": stage.describe()}
            for stage in (start_split(gang, s.ledger.prefetches_of(found["id"])) if gang else ())
        ],
        "device_seconds": device_seconds(states, gang.request.devices if gang else 0, s.clock.now()),
    }


def data_known(s: Session, gang: Gang, decisions: Sequence[Decision]) -> list[dict[str, Any]]:
    """What nodes hold of its inputs and what that weighs in its placement: of a waiting run by what is known now, of
    one with a place what was known of its nodes when it got it.
    """
    from dsec_blocks.model.gangs import GangState
    from dsec_workers.lifecycle.data_distance import DataDistance, DataOnNode, weighed
    from dsec_workers.lifecycle.rules import active_policy

    if gang.state is GangState.WAITING:
        nodes = s.ledger.nodes(s.pool)
        known = DataDistance(s.ledger.inventories(), nodes=nodes, now=s.clock.now()).of(gang.request.inputs)
    else:
        admits = [d for d in decisions if (d.stage, d.outcome) == ("plan", "admit") and "data" in d.detail]
        known = tuple(DataOnNode(**row) for row in admits[-1].detail["data"]) if admits else ()
    per_card = active_policy(s.ledger, s.pool).cache_seconds_per_card
    return weighed(known, per_card)


def failures_known(s: Session, gang: Gang, decisions: Sequence[Decision]) -> list[dict[str, Any]]:
    """On which nodes gangs have lately failed and what that weighs in its placement: of a waiting run by what is known
    now, of one with a place what was known of its nodes when it got it.
    """
    from dsec_blocks.model.gangs import GangState
    from dsec_workers.lifecycle.rules import active_policy

    if gang.state is GangState.WAITING:
        known = s.ledger.node_failures(s.pool, s.clock.now())
    else:
        admits = [d for d in decisions if (d.stage, d.outcome) == ("plan", "admit")]
        known = admits[-1].detail.get("failures", {}) if admits else {}
    each = active_policy(s.ledger, s.pool).failure_cards
    return [
        {
            "node": node,
            "failures": count,
            "cards": count * each,
            "text": f"{count:.2g} recent failures on {node}; weighs {count * each:.2g} cards against it",
        }
        for node, count in sorted(known.items(), key=lambda item: (-item[1], item[0]))
    ]


def device_seconds(states: list[dict[str, Any]], devices: int, now: float) -> float:
    """Devices times the time the run was Running, by the server's own record of its states."""
    ordered = sorted(states, key=lambda state: state["timestamp"])
    ends = [_seconds(state["timestamp"]) for state in ordered[1:]] + [now]
    busy = [
        end - _seconds(state["timestamp"])
        for state, end in zip(ordered, ends, strict=True)
        if state["type"] in ("RUNNING", "CANCELLING")
    ]
    return devices * sum(busy)


def _seconds(timestamp: str) -> float:
    return datetime.datetime.fromisoformat(timestamp.replace("Z", "+00:00")).timestamp()


def _print(told: dict[str, Any]) -> None:
    from dsec_blocks.model.units import format_duration
    from dsec_deployments.cli.output import console, print_data, print_table

    console.print(f"[bold]{told['run']}[/]  {told['run_id']}")
    state = told["prefect_state"]
    console.print(f"{state['name']}" + (f": {state['message']}" if state["message"] else ""))
    gang = told["gang"]
    if gang is None:
        console.print("not in the ledger: no worker of this pool has seen it yet (`dsec status`)")
    else:
        invalid = gang["reason_code"] == "invalid-request"
        by = f", started by {gang['created_by']}" if gang["created_by"] else ""
        asked = "" if invalid else f"{gang['shape']}, priority {gang['request']['priority']}, "
        console.print(
            f"team {gang['team']}{by}, {asked}"
            f"attempt {gang['attempt']}, evicted {gang['evictions']} times, "
            f"{format_duration(told['device_seconds'])} of device time"
        )
        if gang["state"] == "waiting" and gang["reason"]:
            console.print(f"waits because: {gang['reason']}")
        if why := _starts_late(told):
            console.print(f"its start takes longer: {why}")
        if gang["factors"]:
            parts = " + ".join(f"{name} {value:.3g}" for name, value in gang["factors"].items())
            console.print(f"place {gang['position'] or '?'} in line; rank = {parts}")
        for member in gang["placement"] or ():
            cards = gang["cards"].get(member["node"]) or member["devices"]
            console.print(f"on {member['node']}: {', '.join(cards) or 'no device'}")
        if gang["request"]["inputs"]:
            print_data(told["data"])
        for row in told["failures"]:
            console.print(f"placement: {row['text']}", markup=False)
        for row in told["start"]:
            console.print(f"start, {row['stage']}: {row['text']}", markup=False)
        if gang["last_step"] is not None:
            console.print(f"last checkpoint: step {gang['last_step']}")
    console.print()
    print_table(
        "States",
        ["at", "state", "message"],
        [[row["at"][:19].replace("T", " "), row["name"], row["message"]] for row in told["states"]],
        empty="no states",
    )
    if told["evictions"]:
        console.print()
        print_table(
            "Evictions",
            ["at", "who", "cost>", "why", "state"],
            [
                [_clock_time(e.noticed_at), "this run" if e.run_id == told["run_id"] else e.run_id[:8]]
                + ["" if e.cost is None else f"{e.cost:.0f} device-s", e.why, e.state]
                for e in told["evictions"]
            ],
            empty="",
        )
    console.print()
    print_table(
        "Decisions",
        ["at", "stage", "outcome", "why"],
        [[_clock_time(row["at"]), row["stage"], row["outcome"], row["why"]] for row in told["decisions"]],
        empty="no decisions about it",
    )


def _starts_late(told: dict[str, Any]) -> str | None:
    """What the start of its present attempt waits for, as its worker last said."""
    if told["gang"]["state"] != "launching":
        return None
    said = [d for d in told["decisions"] if (d["stage"], d["outcome"]) == ("start", "waits")]
    now = [d["why"] for d in said if d["detail"].get("attempt") == told["gang"]["attempt"]]
    return now[-1] if now else None


def _clock_time(seconds: float) -> str:
    return datetime.datetime.fromtimestamp(seconds, tz=datetime.UTC).strftime("%Y-%m-%d %H:%M:%S")
