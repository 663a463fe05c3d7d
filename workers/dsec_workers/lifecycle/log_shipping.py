"""The ranks' output, read from the gang directories and shipped into each run's logs in Prefect.

The flow's own process logs through Prefect itself; what the ranks print goes to files, and would be invisible on the
run's page. Best effort: positions are kept in memory, and a takeover ships from where the files are then.
"""

from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

import anyio
import anyio.to_thread

from dsec_blocks.model.gangs import HOLDING_STATES, GangState
from dsec_workers.lifecycle.term import Term, key_of
from dsec_workers.prefect_api import ApiRefused, ApiUnavailable

SHIP_SECONDS = 2.0
LARGEST_READ_BYTES = 64 * 1024
LONGEST_LINE = 4000
LINES_A_REQUEST = 200
LEVEL = 20


@dataclass(kw_only=True)
class Tail:
    """Files being followed, each with the position up to which it was shipped."""

    positions: dict[Path, int] = field(default_factory=dict)

    def read(self, directory: Path, *, last: bool = False) -> list[tuple[str, str]]:
        """New whole lines of the ranks' logs in `directory`, each with its file's name; at `last`, all there is."""
        lines = []
        for path in sorted(directory.glob("rank-*.log")) + sorted(directory.glob("member-*.log")):
            position = self.positions.get(path, 0)
            with path.open("rb") as file:
                file.seek(position)
                chunk = file.read(LARGEST_READ_BYTES)
            end = len(chunk) if last else chunk.rfind(b"\n") + 1
            if end == 0 and len(chunk) < LARGEST_READ_BYTES:
                continue
            whole = chunk[: end or len(chunk)]
            self.positions[path] = position + len(whole)
            for line in whole.decode(errors="replace").splitlines():
                if line.strip():
                    lines.append((path.stem, line[:LONGEST_LINE]))
            if last:
                self.positions.pop(path, None)
        return lines


async def ship(term: Term) -> None:
    """Follow the logs of all gangs that run, for ever."""
    tail = Tail()
    while True:
        await anyio.sleep(SHIP_SECONDS)
        try:
            await _ship_once(term, tail)
        except (ApiUnavailable, ApiRefused, OSError) as error:
            term.log.debug("logs were not shipped: %s", error)


async def _ship_once(term: Term, tail: Tail) -> None:
    gangs = await term.read(term.ledger.gangs, term.pool, HOLDING_STATES | {GangState.LEAVING})
    over = frozenset(term.last_words)
    for key in sorted({key_of(gang) for gang in gangs} | over):
        directory = term.logs_of(key)
        if directory is None or not directory.is_dir():
            term.last_words.discard(key)
            continue
        lines = await anyio.to_thread.run_sync(partial(tail.read, directory, last=key in over))
        now = datetime.fromtimestamp(term.clock.now(), tz=UTC).isoformat()
        entries: list[dict[str, Any]] = [
            {"name": f"dsec.{name}", "level": LEVEL, "message": line, "timestamp": now, "flow_run_id": key.run_id}
            for name, line in lines
        ]
        for start in range(0, len(entries), LINES_A_REQUEST):
            await term.api.logs(entries[start : start + LINES_A_REQUEST])
        if key in over:
            term.last_words.discard(key)
