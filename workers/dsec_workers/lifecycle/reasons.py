"""Telling each waiting run why it waits, without drowning the server in state writes.

Each write is a history row and an event, so a run is told anew when its reason's *code* changes; its place and ETA
only when they moved by a fifth, and at most once a minute. Claims go first: this runs only when none is in flight.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import chain

from dsec_blocks.model.gangs import Gang
from dsec_blocks.model.reasons import ReasonCode
from dsec_workers.lifecycle.endings import why_back
from dsec_workers.lifecycle.scheduled import write_scheduled
from dsec_workers.lifecycle.term import Term, Told, waiting_name
from dsec_workers.prefect_api import Proposal
from dsec_workers.scheduling.decisions import Hold
from dsec_workers.scheduling.reasons import sentence

SHARE_MOVED = 0.2
SECONDS_BETWEEN = 60.0
WRITES_AT_ONCE = 2
QUIET_SECONDS = 1.0
LONGEST_YIELD_SECONDS = 10.0
"""Runs that arrive without pause must not keep the waiting in the dark for longer than this."""
LONG_LINE, LONG_LINE_SECONDS = 1000, 1.0
"""A line that is longer is told no oftener than that: everybody in it is looked at, and in a crowd that moves there
are many rounds a second."""
TRICKLE_SECONDS = 1.0
"""Between two rounds of reasons after that: in a crowd that moves, most of them have started before they are told."""


def is_news(hold: Hold, told: Told | None, *, now: float, monotonic: float) -> bool:
    """Whether the run's page should be rewritten. Pure."""
    if told is None or told.code != hold.reason.code or _other_order(hold, told.text):
        return True
    if monotonic - told.at < SECONDS_BETWEEN:
        return False
    return _moved(told.position, hold.position) or _moved(
        None if told.eta is None else told.eta - now, None if hold.eta is None else hold.eta - now
    )


def waiting_message(gang: Gang, hold: Hold, *, now: float) -> str:
    """What the run's page says: first what sent it back into the line, if anything did, then why it waits. Pure."""
    back = why_back(gang)
    return sentence(hold, now) if back is None else f"{back}; {sentence(hold, now)}"


async def tell(term: Term, refused: Sequence[Hold], held: Sequence[Hold], gangs: Mapping[str, Gang]) -> None:
    """Store the reasons in the ledger, and start writing the most important news to Prefect, the `refused` first."""
    now, monotonic = term.clock.now(), term.clock.monotonic()
    if len(held) > LONG_LINE:
        if monotonic - term.line_told_at < LONG_LINE_SECONDS:
            if not term.line_is_due:
                term.wake.at(now + LONG_LINE_SECONDS)
            term.line_is_due = True
            return
        term.line_told_at, term.line_is_due = monotonic, False
    changed = {
        hold.run_id: (str(hold.reason.code), sentence(hold, now)) for hold in _not_stored(chain(refused, held), gangs)
    }
    if changed:
        await term.write(term.ledger.set_reasons, changed)
    busy = term.errands.lately("claim", QUIET_SECONDS) or monotonic - term.arrived_at() < QUIET_SECONDS
    room, term.yielding_since = room_for(busy, yielding_since=term.yielding_since, monotonic=monotonic)
    room -= term.errands.running("reason")
    for hold in chain(refused, held):
        if room <= 0:
            # The rest is told in a later tick, which follows as soon as these are written.
            return
        told = term.told.get(hold.run_id)
        if is_news(hold, told, now=now, monotonic=monotonic):
            room -= term.errands.start(hold.run_id, "reason", _write, term, gangs[hold.run_id], hold)


def _not_stored(holds: Iterable[Hold], gangs: Mapping[str, Gang]) -> Iterator[Hold]:
    """Those of which the ledger has another reason. Everybody who waits is looked at, so it calls little for each."""
    known, frozen = gangs.get, ReasonCode.ADMISSION_FROZEN
    for hold in holds:
        gang = known(hold[0])
        if gang is None:
            continue
        code = hold[1].code
        if gang.reason_code != code or (code is frozen and _other_order(hold, gang.reason or "")):
            yield hold


def room_for(busy: bool, *, yielding_since: float | None, monotonic: float) -> tuple[int, float | None]:
    """How many reasons may be written now, and since when they give way. Pure.

    `busy`: the server's time belongs to arrivals and claims.
    """
    if not busy:
        return WRITES_AT_ONCE, None
    since = monotonic if yielding_since is None else yielding_since
    if monotonic - since < LONGEST_YIELD_SECONDS:
        return 0, since
    return WRITES_AT_ONCE, monotonic - LONGEST_YIELD_SECONDS + TRICKLE_SECONDS


async def _write(term: Term, gang: Gang, hold: Hold) -> None:
    run = term.runs.get(gang.run_id)
    if run is None or run.state.type != "SCHEDULED" or gang.run_id in term.astray:
        return
    message = waiting_message(gang, hold, now=term.clock.now())
    told = Told(
        code=hold.reason.code, position=hold.position, eta=hold.eta, at=term.clock.monotonic(), text=hold.reason.text
    )
    if run.state.message != message or run.state.name != waiting_name(run):
        present = await term.read(term.ledger.gang, gang.run_id)
        if present is None or present.state is not gang.state or present.attempt != gang.attempt:
            return
        proposal = Proposal(
            type="SCHEDULED", name=waiting_name(run), message=message, scheduled_time=run.due or gang.eligible_at
        )
        state = await write_scheduled(term.api, term.api.tell_reason, gang.run_id, proposal, base=run.state)
        if state is None:
            term.astray.add(gang.run_id)
            return
        term.runs[gang.run_id] = replace(run, state=state)
    term.told[gang.run_id] = told


def _other_order(hold: Hold, told: str) -> bool:
    """Whether another operator's order holds the run now than the one that was told: that is news, the code is not."""
    return hold.reason.code is ReasonCode.ADMISSION_FROZEN and hold.reason.text not in told


def _moved(before: float | None, now: float | None) -> bool:
    if before is None or now is None:
        return before is not now
    return abs(now - before) > SHARE_MOVED * max(abs(before), 1.0)
