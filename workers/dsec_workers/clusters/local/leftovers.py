"""What is left of a gang whose supervisor died: found by its traces, killed, and reported gone.

A process may have left its session, its group and its parents; it is still the gang's if it is in the supervisor's
session, was executed with the gang's run id, has its output in the gang's logs, or descends from one that does.
(Reading a log makes nobody the gang's: people and workers do.)
"""

import os
import signal
from pathlib import Path

from dsec_blocks.gateways import processes
from dsec_blocks.gateways.processes import ProcessId, Sighting
from dsec_blocks.model import names
from dsec_workers.clusters.protocol import GangKey


def leftovers_of(key: GangKey, *, directory: Path, supervisor: ProcessId | None) -> list[Sighting]:
    """Every process of the gang that runs now, its supervisor included."""
    table = [row for row in processes.processes() if not row.is_zombie]
    session = _session(supervisor)
    mine = [row for row in table if row.pid != os.getpid() and _is_mine(row, key, directory, session)]
    related = processes.descendants([row.pid for row in mine], among=table)
    own = os.getpid()
    return list({row.pid: row for row in [*mine, *related] if row.pid != own}.values())


def kill_leftovers(key: GangKey, *, directory: Path, supervisor: ProcessId | None) -> int:
    """SIGKILL whatever is left; returns how many were there. Call again until it is 0."""
    found = leftovers_of(key, directory=directory, supervisor=supervisor)
    processes.signal_all([row.pid for row in found], signal.SIGKILL, at="cluster.leftovers.kill")
    return len(found)


def _session(supervisor: ProcessId | None) -> int | None:
    """The supervisor's session, unless its number has been given to another process since."""
    if supervisor is None or supervisor.boot_id != processes.boot_id():
        return None
    now = processes.sighting(supervisor.pid)
    return supervisor.pid if now is None or now.start_time == supervisor.start_time else None


def _is_mine(row: Sighting, key: GangKey, directory: Path, session: int | None) -> bool:
    if session is not None and row.session == session:
        return True
    env = processes.environment(row.pid)
    if env.get(names.ENV_RUN_ID) == key.run_id and env.get(names.ENV_ATTEMPT) == str(key.attempt):
        return True
    inside = f"{directory.resolve()}{os.sep}"
    files = processes.open_files(row.pid)
    return any(files.get(output, "").startswith(inside) for output in (1, 2))
