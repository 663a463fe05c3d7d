"""Bars for bytes on their way: how much, how fast, how long still."""

from collections.abc import Sequence
from types import TracebackType

from rich.console import Console
from rich.progress import (
    BarColumn,
    DownloadColumn,
    Progress,
    TaskID,
    TextColumn,
    TimeRemainingColumn,
    TransferSpeedColumn,
)

from dsec_blocks.cache.prefetch import Arrival


class Bars:
    """One bar a node; they are gone when it is over."""

    def __init__(self, console: Console) -> None:
        columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(binary_units=True))
        self._progress = Progress(
            *columns, TransferSpeedColumn(), TimeRemainingColumn(), console=console, transient=True
        )
        self._bars: dict[str, TaskID] = {}

    def show(self, arrivals: Sequence[Arrival]) -> None:
        """Bring the bars up to date."""
        for one in arrivals:
            if one.node not in self._bars:
                self._bars[one.node] = self._progress.add_task(one.node, total=None)
            total = one.bytes_total or None
            self._progress.update(self._bars[one.node], completed=one.bytes_done, total=total)

    def __enter__(self) -> "Bars":
        self._progress.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._progress.stop()
