"""When the loop looks again: on an event, at a due time, or after the poll interval.

Runs made through the API are announced by an event within milliseconds. Runs made by the server's scheduler are not
(0 of 50 were), so each known due time sets a timer; the poll catches what both miss.
"""

import heapq
import logging
from collections.abc import Callable

import anyio

from dsec_blocks.model.clock import Clock

RETRY_SECONDS = 5.0
NEWS = tuple(
    f"prefect.flow-run.{name}"
    for name in ("Scheduled", "AwaitingRetry", "Resuming", "Cancelling", "Cancelled", "Paused", "Suspended")
)
"""State names that tell us something; a run that starts and ends is seen on the cluster before Prefect knows."""


class Wake:
    """A bell that can be rung from any task, with an alarm for known due times."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._bell = anyio.Event()
        self._alarms: list[float] = []
        self._set: set[float] = set()

    def ring(self) -> None:
        """Wake whoever waits."""
        self._bell.set()

    @property
    def is_rung(self) -> bool:
        """Whether somebody has rung since the last wait began or ended."""
        return self._bell.is_set()

    def at(self, when: float) -> None:
        """Ring at `when` (seconds since the epoch), if that is to come; also if nobody waits at that moment."""
        if when > self._clock.now() and when not in self._set:
            self._set.add(when)
            heapq.heappush(self._alarms, when)

    async def wait(self, seconds: float) -> None:
        """Until rung, the next alarm, or `seconds` from now."""
        with anyio.move_on_after(max(0.0, min(seconds, self._next_alarm()))):
            await self._bell.wait()
        self._bell = anyio.Event()

    def _next_alarm(self) -> float:
        now, passed = self._clock.now(), False
        while self._alarms and self._alarms[0] <= now:
            self._set.discard(heapq.heappop(self._alarms))
            passed = True
        if passed:
            return 0.0
        return self._alarms[0] - now if self._alarms else float("inf")


async def listen(
    pool_id: str, heard: Callable[[str, str], None], log: logging.Logger | logging.LoggerAdapter[logging.Logger]
) -> None:
    """Call `heard(event name, run id)` for each event in `NEWS` of a run of the pool, for ever.

    Events are a convenience: whatever goes wrong here costs a poll interval, never a run.
    """
    from prefect.events.clients import get_events_subscriber
    from prefect.events.filters import EventAnyResourceFilter, EventFilter, EventNameFilter

    wanted = EventFilter(
        event=EventNameFilter(name=list(NEWS)),
        any_resource=EventAnyResourceFilter(id=[f"prefect.work-pool.{pool_id}"]),
    )
    while True:
        try:
            async with get_events_subscriber(filter=wanted, reconnect_on_clean_close=True) as subscriber:
                async for event in subscriber:
                    resource = event.resource.id
                    if resource.startswith("prefect.flow-run."):
                        heard(event.event, resource.removeprefix("prefect.flow-run."))
        except Exception as error:  # noqa: BLE001 - events are best effort; the poll goes on
            log.debug("event subscription lost: %s", error)
        await anyio.sleep(RETRY_SECONDS)
