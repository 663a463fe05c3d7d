"""Where the time of a start went: from due to ready, as far as the ledger knows.

Fetching begins at the reservation and goes on beside the launch, so the stages are not a sum: each says what it took,
and the fetch also whether it was over before user code began. Pure.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from dsec_blocks.ledger import Prefetch, PrefetchState
from dsec_blocks.model.gangs import Gang
from dsec_blocks.model.units import format_duration, format_memory
from dsec_workers.clusters.cache_figures import CacheFigures

LOAD_METRIC = "load_seconds"
"""What a flow reports that measures how long its weights took from the cache into memory."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Stage:
    """One stage of a start; `seconds` is None where it has no end (yet)."""

    name: str
    seconds: float | None
    told: str = ""

    def describe(self) -> str:
        """For people: "41 s; 4 GiB on node-1"."""
        took = "" if self.seconds is None else _short(self.seconds)
        return "; ".join(filter(None, (took, self.told)))


def start_split(gang: Gang, prefetches: Sequence[Prefetch]) -> list[Stage]:
    """The stages of the newest attempt's start that are known: placement, fetch, verify, stall, launch, load, init.

    What the gang's own processes fetched while they waited counts before what was fetched ahead for them.
    """
    stages = []
    reserved, code = gang.admitted_at, gang.launched_at
    if reserved is None:
        return []
    if gang.attempt == 1:
        stages.append(Stage(name="placement", seconds=max(0.0, reserved - gang.eligible_at), told="due to reserved"))
    mine = [each for each in prefetches if each.attempt == gang.attempt]
    ahead, got = _fetch(mine, code), CacheFigures.from_metrics(gang.metrics, attempt=gang.attempt)
    stages += ahead if got is None else _acquired(got, ahead)
    if code is not None:
        stages.append(Stage(name="launch", seconds=max(0.0, code - reserved), told="reserved to user code"))
    if LOAD_METRIC in gang.metrics:
        stages.append(Stage(name="load", seconds=gang.metrics[LOAD_METRIC], told="cache to memory, as the flow says"))
    # Measured from the reservation to the first step; of an earlier attempt if this one has made none.
    if code is not None and gang.restart_seconds is not None and reserved + gang.restart_seconds > code:
        first_step = reserved + gang.restart_seconds - code
        if gang.reported_step is not None:
            stages.append(Stage(name="init", seconds=first_step, told="user code to first step"))
    return stages


def _fetch(prefetches: Sequence[Prefetch], code: float | None) -> list[Stage]:
    began = [each.began_at for each in prefetches if each.began_at is not None]
    if not prefetches:
        return []
    done = [each for each in prefetches if each.state is PrefetchState.DONE and each.ended_at is not None]
    told = [_told(each) for each in prefetches]
    if not began or len(done) < len(prefetches):
        return [Stage(name="fetch", seconds=None, told="; ".join(told))]
    ended = max(each.ended_at or 0.0 for each in done)
    if code is not None:
        wait = ended - code
        told.append("done before user code" if wait <= 0 else f"done {_short(wait)} after user code began")
    stages = [Stage(name="fetch", seconds=ended - min(began), told="; ".join(told))]
    verified = [each.figures["verify"] for each in done if "verify" in each.figures]
    if verified:
        stages.append(Stage(name="verify", seconds=max(verified), told="part of the fetch, on the slowest node"))
    return stages


def _acquired(got: CacheFigures, ahead: Sequence[Stage]) -> list[Stage]:
    stages = list(ahead)
    if got.fetched_bytes:
        told = [f"{format_memory(got.fetched_bytes)} by the gang itself", *(stage.told for stage in ahead[:1])]
        stages = [
            Stage(name="fetch", seconds=got.fetch_seconds, told="; ".join(told)),
            Stage(name="verify", seconds=got.verify_seconds, told="part of the stall"),
        ]
    told_of_stall = f"the longest that a process waited for {format_memory(got.total_bytes)}"
    return [*stages, Stage(name="stall", seconds=got.stall_seconds, told=told_of_stall)]


def _told(each: Prefetch) -> str:
    size = format_memory(each.bytes_total)
    match each.state:
        case PrefetchState.DONE:
            took = _short((each.ended_at or 0.0) - (each.began_at or each.ended_at or 0.0))
            return f"{size} on {each.node} in {took}"
        case PrefetchState.FAILED:
            return f"failed on {each.node}: {each.error or 'no reason given'}"
        case PrefetchState.ORDERED:
            return f"not begun on {each.node}"
        case PrefetchState.WITHDRAWN if each.began_at is None:
            return f"never begun on {each.node}"
        case _:
            stopped = "stopped at" if each.state is PrefetchState.WITHDRAWN else "at"
            return f"{stopped} {format_memory(each.bytes_done)} of {size} on {each.node}"


def _short(seconds: float) -> str:
    return f"{seconds:.2f} s" if 0 <= seconds < 10 else format_duration(seconds)
