"""Telling victims to leave, and starting the preemptor at the right moment.

The ledger says who is evicting and who is promised whose devices; this module only compares and acts, so a successor
of a dead worker goes on where it was. A preemptor is launched with its start barrier shut as soon as every victim is
on its way out: its processes are ready when the devices are.
"""

from collections.abc import Collection, Mapping, Sequence

from dsec_blocks.ledger import Holding
from dsec_blocks.model.gangs import Gang, GangState
from dsec_blocks.model.notices import Notice, NoticeKind
from dsec_blocks.model.units import format_duration
from dsec_workers.clusters.protocol import GangKey
from dsec_workers.lifecycle.term import Term, key_of
from dsec_workers.prefect_api.results import iso

INFO = 20  # the log level

HEAD_START_SECONDS = 2.0
"""A preemptor is prepared this long before its victims' deadline, whether they have answered or not."""


def blockers(holdings: Sequence[Holding]) -> dict[str, set[str]]:
    """By gang that is promised devices: the gangs that still hold them."""
    holders = {holding.device: holding.run_id for holding in holdings if holding.turn == 0}
    found: dict[str, set[str]] = {}
    for holding in holdings:
        if holding.turn > 0 and holding.device in holders:
            found.setdefault(holding.run_id, set()).add(holders[holding.device])
    return found


def on_their_way(
    blockers: Collection[str],
    gangs: Mapping[str, Gang],
    *,
    answered: Collection[GangKey],
    deadlines: Mapping[GangKey, float],
    now: float,
) -> bool:
    """Whether every blocker has answered its notice, or will be stopped soon anyway."""
    for run_id in blockers:
        gang = gangs.get(run_id)
        if gang is None or gang.state is GangState.LEAVING:
            continue
        key = key_of(gang)
        deadline = deadlines.get(key)
        if key not in answered and (deadline is None or deadline - now > HEAD_START_SECONDS):
            return False
    return True


async def notify(term: Term, gang: Gang, reason: str, kind: NoticeKind = NoticeKind.EVICT) -> None:
    """Tell the gang to leave within its grace. A gang that was never launched leaves at once."""
    key = key_of(gang)
    if key in term.notices or term.errands.running_for(gang.run_id, "claim"):
        return  # told already, or being launched at this moment: the end of that brings us back here
    present = await term.gang(gang.run_id)
    if present is None or present.attempt != gang.attempt or present.state is not GangState.EVICTING:
        return
    gang = present
    if gang.launched_at is None and not gang.launch:
        await term.cluster.stop(key, 0.0)  # a launch whose answer was lost may have left processes
        outcome = {"kind": "evicted", "at": term.clock.now(), "reason": reason, "flow_exit": None}
        await term.mark(term.ledger.leave_all, gang.run_id, gang.attempt, outcome)
        return
    now = term.clock.now()
    notice = Notice(kind=kind, reason=reason, deadline=now + gang.request.grace_seconds, attempt=gang.attempt)
    await term.cluster.notify(key, notice)
    term.notices[key] = notice
    term.noticed_at[key] = now
    term.leave_by[key] = term.steady() + gang.request.grace_seconds
    term.carry_wake.at(notice.deadline - HEAD_START_SECONDS)
    term.decide("evict", "noticed", run_id=gang.run_id, why=reason, detail={"deadline": notice.deadline})
    term.errands.start(f"log:{gang.run_id}", "log", _log, term, gang, notice, now)


async def _log(term: Term, gang: Gang, notice: Notice, now: float) -> None:
    """Say it in the run's log, beside what the run itself prints while it leaves. The notice did not wait for this."""
    message = f"Asked to leave within {format_duration(gang.request.grace_seconds)}: {notice.reason}"
    line = {"name": "dsec.worker", "level": INFO, "message": message, "flow_run_id": gang.run_id}
    await term.api.logs([{**line, "timestamp": iso(now)}])
