"""Writing a Scheduled state without reviving a run that somebody has just ended.

The server accepts Scheduled on top of Cancelled and even Completed. So after each such write the history is read: if
a terminal or Cancelling state slipped in between what we knew and what we wrote, it is put back by force.
"""

from collections.abc import Awaitable, Callable, Sequence

from dsec_workers.prefect_api import PrefectApi, Proposal, RunState, Transition


async def write_scheduled(
    api: PrefectApi,
    write: Callable[[str, Proposal], Awaitable[Transition]],
    run_id: str,
    proposal: Proposal,
    *,
    base: RunState,
) -> RunState | None:
    """Write `proposal` over `base`; the run's state afterwards if it is ours, None if the run is somebody else's."""
    transition = await write(run_id, proposal)
    if not transition.accepted or transition.state is None:
        return None
    ours = transition.state
    lost = overwritten(await api.history(run_id), base=base, ours=ours)
    if lost is None:
        return ours
    present = await api.run(run_id)
    if present is not None and present.state.transition_id == ours.transition_id:
        await api.restore(run_id, lost)
    return None


def overwritten(history: Sequence[RunState], *, base: RunState, ours: RunState) -> RunState | None:
    """The newest state that ended the run (or asked for its end) after `base` and that is not `ours`.

    Timestamps are taken before the server's lock, so a state that was committed before ours may bear a later one.
    """
    ends = [
        state
        for state in history
        if state.timestamp > base.timestamp
        and state.id not in (base.id, ours.id)
        and (state.terminal or state.type == "CANCELLING")
    ]
    return ends[-1] if ends else None


def ended_since_scheduled(history: Sequence[RunState]) -> RunState | None:
    """The newest state that ended the run (or asked for its end) after it was last Scheduled.

    Between Scheduled and the Pending of a claim there is nothing else in a run that nobody ended. A Scheduled state
    that only keeps a run waiting does not count: a worker may have been killed between writing it over somebody's
    Cancel and putting the Cancel back.
    """
    ends = None
    for state in sorted(history, key=lambda state: state.timestamp):
        if state.type == "SCHEDULED":
            ends = ends if state.keeps_waiting else None
        elif state.terminal or state.type == "CANCELLING":
            ends = state
    return ends
