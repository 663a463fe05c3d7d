"""What people see in Prefect's artifacts: a report on each run's page, and a map of the pool."""

import json
import re
from collections.abc import Mapping, Sequence
from itertools import islice
from typing import Any

from dsec_blocks.ledger import Holding, Prefetch
from dsec_blocks.model.devices import Node
from dsec_blocks.model.gangs import CARDS, Gang
from dsec_blocks.model.units import format_duration, format_memory
from dsec_workers.clusters.cache_figures import CacheFigures
from dsec_workers.lifecycle.start_split import start_split
from dsec_workers.lifecycle.term import Term
from dsec_workers.prefect_api import ApiRefused, ApiUnavailable

REPORT_KEY = "dsec-run-report"
MOST_TRIES = 3
"""A report is never worth more than that."""
READ_TOGETHER = 50
_KNOWN_AFTERWARDS = ("placement", "fetch", "verify", "stall", "load")
"""Stages of a start that nobody has timed when it is over: the ledger tells them, or the flow does."""


async def publish_run_reports(term: Term) -> None:
    """Publish the reports of the runs that ended, for as long as no claim waits for the same server."""
    while term.ended and not term.errands.running("claim"):
        some = list(islice(term.ended.items(), READ_TOGETHER))
        known = await term.read(term.ledger.named, [run_id for run_id, _ in some])
        for run_id, tries in some:
            del term.ended[run_id]
            gang = known.get(run_id)
            if gang is None:
                continue
            if not await _publish_run_report(term, gang, again=tries > 0) and tries + 1 < MOST_TRIES:
                term.ended[run_id] = tries + 1
                return  # the server has enough to do: after a pause
            if term.errands.running("claim"):
                return


async def _publish_run_report(term: Term, gang: Gang, *, again: bool) -> bool:
    """Put the run report on the run's page; False if nobody knows whether it got there.

    The server makes a new artifact of each request, so after an answer that was lost the page is looked at before
    the report is sent `again`.
    """
    run_id = gang.run_id
    prefetches = await term.read(term.ledger.prefetches_of, run_id) if gang.request.inputs else []
    report = run_report(gang, prefetches, now=term.clock.now())
    for stage in start_split(gang, prefetches) if not again else ():
        if stage.seconds is not None and stage.name in _KNOWN_AFTERWARDS:
            term.metrics.started(stage.name, stage.seconds)
    try:
        if again and report in await term.api.artifacts(key=REPORT_KEY, run_id=run_id):
            return True
        description = f"How {gang.name} got its GPUs"
        await term.api.artifact(key=REPORT_KEY, kind="markdown", data=report, description=description, run_id=run_id)
    except ApiUnavailable as error:
        term.log.info("no report for %s yet: %s", run_id, error)
        return False
    except ApiRefused as error:
        term.log.info("no report for %s: %s", run_id, error)
    return True


def run_report(gang: Gang, prefetches: Sequence[Prefetch] = (), *, now: float) -> str:
    """The report as markdown: waits, the last start stage by stage, devices, evictions, device-seconds.

    The gang has ended, so where it sat is known no more, but for cards that a node chose; how much it held is.
    """
    lines = [f"# {gang.name}", "", f"Asked for **{gang.request.describe()}** in team **{gang.team}**.", ""]
    rows: list[tuple[str, str]] = [("attempts", str(gang.attempt))]
    if gang.launched_at is not None:
        rows.append(("from due to the last start", format_duration(gang.launched_at - gang.eligible_at)))
        rows += [(f"last start: {stage.name}", stage.describe()) for stage in start_split(gang, prefetches)]
        rows += _cache_rows(gang)
        ran = float(gang.outcome.get("at") or now) - gang.launched_at
        rows.append(("last attempt ran", format_duration(ran)))
        rows.append(("device-seconds of the last attempt", f"{ran * gang.request.devices:.0f}"))
    rows.append(("evictions", str(gang.evictions)))
    rows.append(("restarts after a failure of the machine", str(gang.infrastructure_restarts)))
    if gang.last_step is not None:
        rows.append(("last committed step", str(gang.last_step)))
    lines += ["| | |", "|---|---|", *(f"| {name} | {value} |" for name, value in rows), ""]
    cards = sorted((gang.launch.get(CARDS) or {}).items())
    if cards:
        lines += ["| node | cards of the last attempt |", "|---|---|"]
        lines += [*(f"| {node} | {', '.join(names)} |" for node, names in cards), ""]
    return "\n".join(lines)


def _cache_rows(gang: Gang) -> list[tuple[str, str]]:
    got = CacheFigures.from_metrics(gang.metrics, attempt=gang.attempt)
    if got is None:
        return []
    local, total = f"{got.local_hit_ratio:.1%}", f"{got.total_hit_ratio:.1%}"
    of = f"of {format_memory(got.total_bytes)}"
    return [
        ("byte hit ratio of the nodes' caches", f"{local} {of}"),
        ("byte hit ratio with the cluster's store", f"{total} {of}"),
    ]


def pool_map(nodes: Sequence[Node], holdings: Sequence[Holding], names: dict[str, str]) -> list[dict[str, Any]]:
    """One row a node: its devices, how many are free, and who holds the others."""
    holder = {holding.device: holding.run_id for holding in holdings if holding.turn == 0}
    table = []
    for node in nodes:
        held: dict[str, int] = {}
        for device in node.devices:
            if device.uuid in holder:
                held[holder[device.uuid]] = held.get(holder[device.uuid], 0) + 1
        table.append(
            {
                "node": node.name,
                "model": ", ".join(sorted({device.model for device in node.devices})) or "none",
                "GPUs": len(node.devices),
                "free": len(node.devices) - sum(held.values()) if node.schedulable else 0,
                "held by": ", ".join(f"{names.get(run, run)} ({count})" for run, count in sorted(held.items())),
            }
        )
    return table


async def publish_pool_map(term: Term, nodes: Sequence[Node], gangs: Mapping[str, Gang]) -> None:
    """Publish who holds which GPUs, if that differs from the last map of this term."""
    holdings = await term.read(term.ledger.holders, term.pool)
    names = {run_id: gang.name for run_id, gang in gangs.items()}
    table = pool_map(nodes, holdings, names)
    if table == term.published_map:
        return
    await term.api.artifact(
        key=f"dsec-pool-{slug(term.pool)}",
        kind="table",
        data=json.dumps(table),
        description=f"Who holds the GPUs of pool {term.pool}",
    )
    term.published_map = table


def slug(name: str) -> str:
    """`name` as an artifact key allows it."""
    return re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")
