"""A worker that is told to go is gone in time, whatever Prefect's client and the interpreter still want to finish.

Closing the client, telling the server that the worker stopped, and the queues of logs and events that are emptied at
exit each have time-outs of their own, longer than a service manager waits. Nothing that matters is in them: what must
not be lost is in the ledger, and a worker may be killed at any instruction.
"""

import os
import sys
import threading

EXIT_SECONDS = 4.7
"""From the signal to the exit, at most: people are promised five."""


def exit_within(seconds: float = EXIT_SECONDS) -> threading.Timer:
    """End this process with status 0 when `seconds` have passed, unless it has ended by itself."""
    timer = threading.Timer(seconds, _leave, args=(seconds,))
    timer.daemon = True
    timer.name = "exit-deadline"
    timer.start()
    return timer


def _leave(seconds: float) -> None:
    words = f"the worker leaves {seconds:.1f} s after it was asked to, without waiting any longer; its gangs run on"
    print(words, file=sys.stderr, flush=True)
    os._exit(0)
