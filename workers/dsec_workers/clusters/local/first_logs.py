"""What a run logs in its first second, kept back; one that is over by then sends all of it in one request.

Prefect sends logs from an event loop, two threads and a client of their own, which costs a short run as much as
its own requests do. A run that lasts gives what it kept to them after `KEPT_SECONDS`, and from then on everything at
once.
"""

import contextlib
import os
import sys
import threading
from collections.abc import Iterator
from typing import Any

KEPT_SECONDS = 1.0
MOST_KEPT_BYTES = 500_000
"""Of lines as JSON; a run that logs more than that in its first second does not wait."""


class FirstLogs:
    """The lines that are kept back. Used from all threads of the process; its lock is never held while sending."""

    def __init__(self) -> None:
        self._kept: list[dict[str, Any]] | None = []
        self._bytes = 0
        self._lock = threading.Lock()

    def take(self, line: dict[str, Any]) -> None:
        """Keep a line, or give it to Prefect if nothing is kept any more."""
        with self._lock:
            keeps = self._kept is not None and self._bytes <= MOST_KEPT_BYTES
            if self._kept is not None and keeps:
                self._kept.append(line)
                self._bytes += line.get("__payload_size__", 0)
        if not keeps:
            self.give_away()
            _to_prefect(line)

    def give_away(self) -> None:
        """Let Prefect's own sending have what was kept; from now on it gets everything."""
        for line in self._all():
            _to_prefect(line)

    def send(self, client: Any) -> None:
        """Send what was kept on the run's own connection. A failure is told as Prefect tells it, and ends nothing."""
        lines = self._all()
        if not lines:
            return
        try:
            client._client.post(
                "/logs/", json=[{k: v for k, v in line.items() if k != "__payload_size__"} for line in lines]
            )
        except Exception as error:  # noqa: BLE001 - whatever it is, the run has ended as it has
            print(f"--- Error logging to API ---\n{error}", file=sys.stderr)
        except BaseException:
            for line in lines:
                _to_prefect(line)
            raise

    def forget(self) -> None:
        """In a child that was forked from here: the lines are the parent's."""
        self._kept, self._lock = None, threading.Lock()

    def _all(self) -> list[dict[str, Any]]:
        with self._lock:
            lines, self._kept = self._kept or [], None
        return lines


def _to_prefect(line: dict[str, Any]) -> None:
    from prefect.logging.handlers import APILogWorker

    APILogWorker.instance().send(line)


@contextlib.contextmanager
def kept_back(client: Any) -> Iterator[None]:
    """Inside, the first lines that the run logs are kept; at the end they are sent with `client`, if they still are."""
    from prefect.logging.handlers import set_api_log_sink

    first, is_over = FirstLogs(), threading.Event()

    def give_away_later() -> None:
        if not is_over.wait(KEPT_SECONDS):
            set_api_log_sink(None)
            first.give_away()

    set_api_log_sink(first.take)
    os.register_at_fork(after_in_child=first.forget)
    threading.Thread(target=give_away_later, name="dsec-first-logs", daemon=True).start()
    try:
        yield
    finally:
        is_over.set()
        set_api_log_sink(None)
        first.send(client)
