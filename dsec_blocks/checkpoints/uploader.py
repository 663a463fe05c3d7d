"""The uploader process: takes a gang's snapshots to the store, after the gang's devices are given away.

One per gang and node, in a session of its own; it runs until the spool is closed and empty, and can be killed and
started again at any time.
"""

import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

from dsec_blocks.checkpoints.uploads import Tell, Uploader
from dsec_blocks.gateways.clock import SystemClock
from dsec_blocks.model.clock import Clock


def main(spool: Path, channel: str | None, *, clock: Clock | None = None) -> int:
    """Upload until the spool is closed and empty; 0 when it is, 1 when the store could not be reached."""
    return Uploader(spool=spool, tell=_teller(channel), clock=clock or SystemClock()).run()


def _teller(channel: str | None) -> Tell:
    """Tell the supervisor; that it is gone does not keep a checkpoint from being committed."""

    def tell(op: str, **fields: Any) -> None:
        if channel is None:
            return
        from dsec_blocks.gang.channel import Channel

        with suppress(Exception):
            connection = Channel.connect(channel)
            try:
                connection.call(op, **fields)
            finally:
                connection.close()

    return tell


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), sys.argv[2] if len(sys.argv) > 2 else None))
