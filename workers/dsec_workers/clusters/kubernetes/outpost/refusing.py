"""How an outpost that cannot be one says so: a line in its log, and the last word of its pod."""

import os
from pathlib import Path

from dsec_blocks.gateways.clock import SystemClock
from dsec_workers.clusters.kubernetes.outpost import termination

EXIT_NOT_STARTED = 70


def could_not_start(member: int, why: str, *, log: Path | None) -> int:
    """Say why the gang does not start, where the worker looks for it; the container's exit code."""
    print(f"member {member} on {os.uname().nodename} cannot start: {why}", flush=True)
    now = SystemClock().now()
    gone = {"seq": 1, "type": "gone", "at": now, "flow_exit": None, "member_exits": {}, "start_failure": why}
    termination.leave(log, termination.encode([gone]))
    return EXIT_NOT_STARTED
