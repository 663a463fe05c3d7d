"""Where time goes: seconds, calls and the newest end of whatever is wrapped."""

import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from functools import wraps
from typing import Any

LEDGER_METHODS = (
    "admit_all", "claimed_all", "launched_all", "started_all", "release_all", "leave_all", "requeue_all", "end_all",
    "timed_all", "decide", "gang", "gangs", "holders", "enqueue", "set_reasons", "put_nodes", "preemptors", "evictions",
    "news", "whole", "states", "teams", "accrue",
)  # fmt: skip


@dataclass
class Timed:
    """By name, in whichever thread. Seconds of calls that overlap add up, so they may be more than passed."""

    seconds: dict[str, float] = field(default_factory=dict)
    calls: dict[str, int] = field(default_factory=dict)
    last: dict[str, float] = field(default_factory=dict)
    """When the newest call ended, in seconds since the epoch."""

    def add(self, name: str, seconds: float) -> None:
        """One call, which has just ended."""
        self.seconds[name] = self.seconds.get(name, 0.0) + seconds
        self.calls[name] = self.calls.get(name, 0) + 1
        self.last[name] = time.time()

    def wrap(self, name: str, method: Callable[..., Any]) -> Callable[..., Any]:
        """`method`, counted."""

        @wraps(method)
        def timed(*args: Any, **kwargs: Any) -> Any:
            began = time.monotonic()
            try:
                return method(*args, **kwargs)
            finally:
                self.add(name, time.monotonic() - began)

        return timed

    def wrap_async(self, name: str, method: Callable[..., Awaitable[Any]]) -> Callable[..., Awaitable[Any]]:
        """The same for a method that is awaited."""

        @wraps(method)
        async def timed(*args: Any, **kwargs: Any) -> Any:
            began = time.monotonic()
            try:
                return await method(*args, **kwargs)
            finally:
                self.add(name, time.monotonic() - began)

        return timed

    def ledger(self, ledger: Any) -> None:
        """Count what is asked of a ledger, by method."""
        for name in LEDGER_METHODS:
            setattr(ledger, name, self.wrap(f"ledger.{name}", getattr(ledger, name)))

    def told(self) -> dict[str, Any]:
        """For a result file."""
        return {"seconds": self.seconds, "calls": self.calls, "last": self.last}
