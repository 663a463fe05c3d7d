"""The gang's last word: `gone`, told once to everybody who listens, and written down for whoever comes later."""

from collections.abc import Callable
from typing import Any

from dsec_blocks.gateways import files
from dsec_workers.clusters.local.happenings import Happenings
from dsec_workers.clusters.local.layout import GangDirectory, to_bytes
from dsec_workers.clusters.local.loop import Loop

_RETRY_SECONDS = 0.5


class LastWord:
    """`on_written` is called when the end is durable: nothing is left for the supervisor to do."""

    def __init__(
        self, *, loop: Loop, happenings: Happenings, directory: GangDirectory, on_written: Callable[[], None]
    ) -> None:
        self.is_said = False
        self.on_written = on_written
        self._loop = loop
        self._happenings = happenings
        self._directory = directory

    def say(self, **fields: Any) -> None:
        """Tell that the gang is gone, and with which exits."""
        self.is_said = True
        commit = self._happenings.last("committed")
        self._happenings.tell("gone", last_commit_step=commit["step"] if commit else None, **fields)
        self._write()

    def _write(self) -> None:
        record = {"events": self._happenings.records}
        try:
            files.write(self._directory.gone, to_bytes(record), at="supervisor.exit.write")
        except OSError as error:  # exit codes are told once: wait until there is room for them
            print(f"the gang's end could not be written, trying again: {error}", flush=True)
            self._loop.after(_RETRY_SECONDS, self._write)
            return
        if not self._directory.order.exists():  # forgotten meanwhile by somebody who was told in person
            files.remove(self._directory.gone, at="supervisor.exit.forgotten")
        self.on_written()
