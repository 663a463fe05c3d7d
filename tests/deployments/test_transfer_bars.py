"""What a person sees while `dsec prefetch` waits."""

from io import StringIO

import pytest
from rich.console import Console

from dsec_blocks.cache.prefetch import Arrival
from dsec_deployments.cli.transfers import Bars

MIB = 2**20


def arrival(node: str, done: int, total: int) -> Arrival:
    return Arrival(node=node, is_open=True, state="fetching", bytes_done=done, bytes_total=total)


def test_a_bar_says_how_much_how_fast_and_how_long_still(monkeypatch: pytest.MonkeyPatch) -> None:
    seconds = [0.0]
    screen = StringIO()
    bars = Bars(Console(file=screen, width=120, force_terminal=True, color_system=None))
    monkeypatch.setattr(bars._progress, "get_time", lambda: seconds[0])
    for count in range(6):
        seconds[0] = float(count)
        bars.show([arrival("node-0", count * 10 * MIB, 100 * MIB), arrival("node-1", 0, 0)])
    bars._progress.console.print(bars._progress)
    first, second = [line for line in screen.getvalue().splitlines() if "node-" in line]
    assert first.startswith("node-0") and "50.0/100.0 MiB" in first
    assert "10.5 MB/s" in first and "0:00:05" in first, first
    assert second.startswith("node-1") and "0:00" not in second, "of what has not begun nobody knows when it ends"
