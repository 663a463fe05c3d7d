"""The notice that a gang is under: who may replace it, until when it holds, and where all ranks stop for it."""

from collections.abc import Callable
from typing import Any

from dsec_blocks.gateways import files
from dsec_blocks.model.clock import Clock
from dsec_blocks.model.notices import NoticeKind
from dsec_workers.clusters.local.layout import GangDirectory, to_bytes
from dsec_workers.clusters.local.loop import Loop, Timer


class StandingNotice:
    """`current` is None while the gang may run on."""

    def __init__(
        self, *, loop: Loop, clock: Clock, directory: GangDirectory, attempt: int, on_deadline: Callable[[], None]
    ) -> None:
        self.current: dict[str, Any] | None = None
        self.stop_before: int | None = None
        """The step before which all ranks stop, once rank 0 has said so."""
        self._loop = loop
        self._clock = clock
        self._directory = directory
        self._attempt = attempt
        self._on_deadline = on_deadline
        self._deadline: Timer | None = None

    @property
    def kind(self) -> str | None:
        """Of the current notice."""
        return self.current["kind"] if self.current is not None else None

    def take(self, notice: dict[str, Any]) -> dict[str, Any]:
        """Be under `notice` from now on, its deadline enforced; returns it as it holds. A cancellation stays one."""
        if self.current is not None and self.kind == NoticeKind.CANCEL:
            notice = {**notice, "kind": NoticeKind.CANCEL.value, "reason": self.current["reason"]}
        self.current = notice
        try:
            files.write(self._directory.notice, to_bytes(notice), at="supervisor.notice.write")
        except OSError as error:  # it only tells a successor of this supervisor why the gang left
            print(f"the notice could not be written: {error}", flush=True)
        self._forget_deadline()
        self._deadline = self._loop.after(notice["deadline"] - self._clock.now(), self._on_deadline)
        return notice

    def drop(self) -> None:
        """The notice was taken back. Raises `OSError` when that cannot be made durable; it then stands."""
        files.remove(self._directory.notice, at="supervisor.notice.remove")
        self.current = None
        self._forget_deadline()

    def publish_stop(self, step: int) -> int | None:
        """Take down the step to stop before; None when there is no notice (any more) to stop for."""
        if self.current is None:
            return None
        if self.stop_before is None:
            self.stop_before = step
            content = to_bytes({"step": step, "attempt": self._attempt})
            try:
                files.write(self._directory.stop_before, content, at="supervisor.stop_before.write")
            except OSError as error:  # the ranks hear it from here; a full disk must not fail a run that gives way
                print(f"the step to stop before could not be written: {error}", flush=True)
        return self.stop_before

    def _forget_deadline(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
