"""`dsec status`: is everything there that should be?"""

from pathlib import Path
from typing import Any

import typer

from dsec_deployments.cli.options import Json, Pool


def status(pool: Pool = None, json: Json = False) -> None:
    """Show the parts of the installation and whether they work; exit code 1 if one does not.

    Example: [bold]dsec status[/]
    """
    from dsec_deployments.cli.output import print_json, print_table
    from dsec_deployments.cli.session import session

    with session(pool) as s:
        parts = _parts(s)
    if json:
        print_json(parts)
    else:
        print_table(
            f"DSec, pool {s.pool}",
            ["part", "", "detail"],
            [[part["part"], "[green]ok[/]" if part["ok"] else "[red]✗[/]", part["detail"]] for part in parts],
            empty="",
        )
    if not all(part["ok"] for part in parts):
        raise typer.Exit(1)


def _parts(s: Any) -> list[dict[str, Any]]:
    from collections import Counter

    from dsec_blocks.ledger import STANDING_KINDS
    from dsec_blocks.model.errors import DsecError
    from dsec_blocks.model.gangs import GangState
    from dsec_deployments import background, installation

    home = installation.home()
    answers = s.prefect.answers()
    found = s.prefect.get(f"work_pools/{s.pool}") if answers else None
    worker = background.find(home, "worker")
    parts = [
        _part("home", home.exists(), str(home)),
        _part("Prefect server", answers, s.prefect.ui_url if answers else f"no answer at {s.prefect.url}: `dsec up`"),
        _part(
            "work pool",
            found is not None and not found["is_paused"],
            "not created yet: `dsec up`" if found is None else ("paused" if found["is_paused"] else found["status"]),
        ),
        _part("worker", worker is not None, f"pid {worker.process.pid}" if worker else "none started here: `dsec up`"),
    ]
    parts.append(_agent(home))
    if s.installation.is_on_kubernetes:
        parts += _cluster(home)
    try:
        lease = s.ledger.lease(s.pool)
        nodes = s.ledger.nodes(s.pool)
        standing = sum(wish.kind in STANDING_KINDS and not wish.args.get("undo") for wish in s.ledger.wishes(s.pool))
        states = Counter(gang.state for gang in s.ledger.gangs(s.pool, set(GangState) - {GangState.ENDED}))
    except DsecError as error:
        return [*parts, _part("ledger", False, str(error))]
    led = lease is not None and not lease.released
    devices = sum(len(node.devices) for node in nodes)
    return [
        *parts,
        _part("ledger", True, s.ledger.version()),
        _part("leader", led, lease.holder if led else "nobody plans this pool"),
        _part("devices", devices > 0, f"{len(nodes)} nodes, {devices} devices"),
        _part("policy", True, _policy(s)),
        _part("orders", True, f"{standing} stand: `dsec orders`" if standing else "none"),
        _part("gangs", True, ", ".join(f"{count} {state}" for state, count in sorted(states.items())) or "none"),
    ]


def _cluster(home: Path) -> list[dict[str, Any]]:
    from dsec_deployments import background
    from dsec_deployments.control_plane import plane, process_nodes

    answers = plane.running(home)
    nodes = background.find(home, process_nodes.NAME)
    return [
        _part("Kubernetes", answers is not None, answers.server if answers else "does not answer: `dsec up`"),
        _part("process nodes", nodes is not None, f"pid {nodes.process.pid}" if nodes else "do not run: `dsec up`"),
    ]


def _agent(home: Path) -> dict[str, Any]:
    from dsec_blocks.model.errors import DsecError
    from dsec_workers.node_agent.client import AgentClient

    client = AgentClient.of(home)
    if client is None:
        return _part("agent", False, "none runs here, so runs fetch for themselves: `dsec up`, or `dsec agent`")
    with client:
        try:
            told = client.health()
        except DsecError as error:
            return _part("agent", False, str(error))
    troubles = "; ".join(f"{name}: {text}" for name, text in told["troubles"].items())
    return _part("agent", bool(told["ok"]), troubles or f"{', '.join(told['nodes'])} at {client.address.url}")


def _policy(s: Any) -> str:
    from dsec_blocks.ledger import SHADOW, SHIPPED_VERSION

    active, shadow = s.ledger.policy(s.pool), s.ledger.policy(s.pool, role=SHADOW)
    told = (
        f"version {SHIPPED_VERSION}, as shipped" if active is None else f"version {active.version}, set by {active.by}"
    )
    return told + ("" if shadow is None else f"; version {shadow.version} in shadow")


def _part(name: str, ok: bool, detail: str) -> dict[str, Any]:
    return {"part": name, "ok": ok, "detail": detail}
