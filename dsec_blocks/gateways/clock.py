"""The one place that reads the machine's clock."""

import time


class SystemClock:
    """The machine's own time; fulfils `dsec_blocks.model.clock.Clock`."""

    def now(self) -> float:
        """Seconds since the epoch."""
        return time.time()

    def monotonic(self) -> float:
        """Seconds that never go back."""
        return time.monotonic()
