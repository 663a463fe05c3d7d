"""Saying now and then that this process still lives, for those who cannot see it: holders in other pid namespaces.

A thread of its own touches the marks that the process keeps, so nobody who holds a bundle for a day has to think of it.
Where pids can be seen this changes nothing. A forked child keeps nothing: the marks are its parent's.
"""

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from dsec_blocks.cache.store.marks import UNSEEN_SECONDS, renew


class Renewals:
    """The marks that one process keeps alive. Thread-safe."""

    def __init__(self, *, every_seconds: float = UNSEEN_SECONDS / 5) -> None:
        self.every_seconds = every_seconds
        self._news = threading.Condition()
        self._paths: set[Path] = set()
        self._thread: threading.Thread | None = None
        os.register_at_fork(after_in_child=self._forget)

    def keep(self, path: Path) -> None:
        """Renew this mark until it is dropped, or this process ends."""
        with self._news:
            self._paths.add(path)
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, daemon=True, name="dsec-renew")
                self._thread.start()

    def drop(self, path: Path) -> None:
        """Renew it no more; one that is not kept is fine."""
        with self._news:
            self._paths.discard(path)

    @contextmanager
    def kept(self, *paths: Path) -> Iterator[None]:
        """Renew these marks meanwhile; one that is not there (yet, or any more) is fine."""
        for path in paths:
            self.keep(path)
        try:
            yield
        finally:
            for path in paths:
                self.drop(path)

    def _forget(self) -> None:
        self._news, self._paths, self._thread = threading.Condition(), set(), None

    def _run(self) -> None:
        while True:
            with self._news:
                self._news.wait(self.every_seconds)
                if not self._paths:
                    self._thread = None
                    return
                paths = list(self._paths)
            for path in paths:
                with suppress(OSError):  # a share that does not answer now may do so next time
                    renew(path)


RENEWALS = Renewals()
"""Those of this process."""
