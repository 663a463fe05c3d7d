"""The ranks' output, read from the gang directories and shipped into each run's logs in Prefect.

The flow's own process logs through Prefect itself; what the ranks print goes to files, and would be invisible on the
run's page. Best effort: positions are kept in memory, and a takeover ships from where the files are then. In pods each
outpost does it for its own (`clusters.kubernetes.outpost.shipping`).
"""

from collections.abc import Callable
from functools import partial
from pathlib import Path

import anyio
import anyio.to_thread

from dsec_blocks.model.errors import DsecError
from dsec_blocks.model.gangs import HOLDING_STATES, GangState
from dsec_workers.clusters import rank_output
from dsec_workers.clusters.protocol import GangKey
from dsec_workers.clusters.rank_output import Tail
from dsec_workers.lifecycle.term import Term, key_of

SHIP_SECONDS = 2.0


Directories = Callable[[GangKey], Path | None]
"""Where the cluster keeps an attempt's logs, if that is on this machine."""


async def ship(term: Term, logs_of: Directories) -> None:
    """Follow the logs of all gangs that run, for ever."""
    tail = Tail()
    while True:
        await anyio.sleep(SHIP_SECONDS)
        try:
            await _ship_once(term, tail, logs_of)
        except (DsecError, OSError) as error:  # also the ledger may be away: no reason for the worker to end
            term.log.debug("logs were not shipped: %s", error)


async def _ship_once(term: Term, tail: Tail, logs_of: Directories) -> None:
    gangs = await term.read(term.ledger.gangs, term.pool, HOLDING_STATES | {GangState.LEAVING})
    over = frozenset(term.last_words)
    for key in sorted({key_of(gang) for gang in gangs} | over):
        directory = logs_of(key)
        if directory is None or not directory.is_dir():
            term.last_words.discard(key)
            continue
        lines = await anyio.to_thread.run_sync(partial(tail.read, directory, last=key in over))
        for entries in rank_output.requests(lines, run_id=key.run_id, now=term.clock.now()):
            await term.api.logs(entries)
        if key in over:
            term.last_words.discard(key)
