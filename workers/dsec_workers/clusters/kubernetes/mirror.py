"""A local copy of one kind of object that follows the API server: list, watch, and list again whenever in doubt.

Level-triggered: whoever reads it sees the newest state that is known, and is woken when that changes; no decision
hangs on seeing each single event. `is_current` says whether the copy follows right now, so that nothing is concluded
from the absence of an object while the API server is away.
"""

import asyncio
import contextlib
import logging
from collections.abc import Callable
from typing import Any

from dsec_blocks.gateways.clock import SystemClock
from dsec_blocks.model.clock import Clock
from dsec_blocks.model.errors import ClusterError
from dsec_workers.clusters.kubernetes.api import Api, Object
from dsec_workers.clusters.kubernetes.errors import ApiError, Expired, Forbidden, Unreachable
from dsec_workers.clusters.kubernetes.metrics import BROKEN

_log = logging.getLogger(__name__)
DEAD_SECONDS = 300.0
"""A mirror that has neither heard anything nor failed for so long hangs: a watch that is silent ends after 90 s, a page
of a list is tried for 190 s."""
_PAUSE_SECONDS = 0.5
_LONGEST_PAUSE_SECONDS = 10.0

Change = Callable[[Object | None, Object | None], None]
"""Called with (before, after); None stands for "not there"."""


class Mirror:
    """All objects at `path` that match, by (namespace, name)."""

    def __init__(
        self,
        api: Api,
        path: str,
        *,
        labels: str = "",
        fields: str = "",
        on_change: Change | None = None,
        clock: Clock | None = None,
    ) -> None:
        self._api, self._path, self._labels, self._fields = api, path, labels, fields
        self._on_change = on_change
        self._clock = clock or SystemClock()
        self._figures = api.metrics.followed(path)
        self._turned_at = self._clock.monotonic()
        self.objects: dict[tuple[str, str], Object] = {}
        self.lists = 0
        """How often everything was listed."""
        self._is_listed = False
        self._version = ""
        self._task: asyncio.Task[None] | None = None
        self.failure: ClusterError | None = None
        """Why it does not follow right now."""

    @property
    def is_current(self) -> bool:
        """Whether the copy follows the API server now."""
        return self._is_listed and self.failure is None

    def hangs(self) -> str | None:
        """Why only a restart would make it follow again; None while it follows, or tries to."""
        silent = self._clock.monotonic() - self._turned_at
        if self._task is None or silent <= DEAD_SECONDS:
            return None
        return f"{self._path} has not been followed for {silent:.0f} s"

    async def start(self) -> None:
        """Follow from now on, in the background; returns when the first list is there.

        Raises `Forbidden` when the account may not read this kind; that would not heal by itself.
        """
        await self._list()
        self._task = asyncio.create_task(self._follow(), name=f"mirror {self._path}")

    async def stop(self) -> None:
        """Stop following."""
        if self._task is not None:
            self._task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._task
        self._figures.stopped()

    async def _follow(self) -> None:
        pause = _PAUSE_SECONDS
        while True:
            try:
                if not self._is_listed:
                    await self._list()
                self._figures.watching()
                async for kind, item in self._api.watch(
                    self._path, since=self._version, labels=self._labels, fields=self._fields
                ):
                    self._take(kind, item)
                    pause = _PAUSE_SECONDS
                self._turned_at = self._clock.monotonic()
                continue  # the server ended the watch in good order: go on from where it was
            except Expired as error:
                was_watching = self._is_listed
                self._fail(error, lost=True)
                if was_watching:
                    continue  # a list helps at once; one that expires itself is not begun again without a pause
            except ClusterError as error:
                # The copy may be stale until the watch goes on; the version is kept, since most often it can.
                self._fail(error, lost=isinstance(error, Forbidden))
            except Exception as error:  # noqa: BLE001 - a copy that nobody keeps up to date would be believed for ever
                _log.exception("%s is listed again", self._path)
                self._fail(ClusterError(f"{self._path}: {error}"), lost=True)
            await asyncio.sleep(pause)
            pause = min(_LONGEST_PAUSE_SECONDS, pause * 2)

    def _fail(self, error: ClusterError, *, lost: bool) -> None:
        self._turned_at = self._clock.monotonic()
        self.failure = error
        self._is_listed = self._is_listed and not lost
        is_its_word = isinstance(error, ApiError | Unreachable)
        self._figures.failed(type(error).__name__.lower() if is_its_word else BROKEN)

    def _hear(self) -> None:
        self._turned_at = self._clock.monotonic()
        self._figures.heard(self._clock.now())

    async def _list(self) -> None:
        items, self._version = await self._api.list(
            self._path, labels=self._labels, fields=self._fields, heard=self._hear
        )
        for item in items:
            _shortened(item)
        self.lists += 1
        self._figures.listed()
        found = {key_of(item): item for item in items}
        for key in [key for key in self.objects if key not in found]:
            self._change(key, None)
        for key, item in found.items():
            before = self.objects.get(key)
            if before is None or before["metadata"]["resourceVersion"] != item["metadata"]["resourceVersion"]:
                self._change(key, item)
        self.failure = None
        self._is_listed = True

    def _take(self, kind: str, item: Object) -> None:
        self._hear()
        if self.failure is not None:
            self.failure = None
            self._figures.follows()
        self._version = item["metadata"]["resourceVersion"]
        if kind == "BOOKMARK":
            return
        _shortened(item)
        self._change(key_of(item), None if kind == "DELETED" else item)

    def _change(self, key: tuple[str, str], after: Object | None) -> None:
        before = self.objects.get(key)
        if after is None:
            self.objects.pop(key, None)
        else:
            self.objects[key] = after
        if self._on_change is None:
            return
        try:
            self._on_change(before, after)
        except Exception:  # noqa: BLE001 - anybody may put odd objects into a cluster; the others are not to wait for one
            _log.exception("%s %s is passed over", self._path, "/".join(key))
            self._figures.passed_over()


def _shortened(item: Object) -> None:
    """Without the record of who set which field: half of an object, and nobody here asks."""
    item["metadata"].pop("managedFields", None)


def key_of(item: Object) -> tuple[str, str]:
    """(namespace, name); the namespace of a cluster-wide object is empty."""
    metadata: dict[str, Any] = item["metadata"]
    return metadata.get("namespace") or "", metadata["name"]
