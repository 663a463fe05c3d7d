"""A single-threaded event loop that may fork at any moment.

The supervisor forks its members while it talks to everybody; asyncio's loop keeps state (epoll, wakeup descriptors,
the running-loop marker) that a forked child would share with its parent. This one has three things only, descriptors,
timers and ended children, and a child drops them with one call.
"""

import heapq
import itertools
import json
import os
import selectors
import signal
import socket
from collections.abc import Callable
from typing import Any

from dsec_blocks.gateways import processes
from dsec_blocks.model.clock import Clock

_LONGEST_WAIT_SECONDS = 5.0
_LARGEST_MESSAGE_BYTES = 16 * 2**20


class Timer:
    """One call in the future; `cancel()` may be called at any time."""

    def __init__(self, callback: Callable[[], None]) -> None:
        self._callback: Callable[[], None] | None = callback

    def cancel(self) -> None:
        """Never call it."""
        self._callback = None

    def fire(self) -> None:
        """Call it, once."""
        callback, self._callback = self._callback, None
        if callback is not None:
            callback()


class Loop:
    """Waits for descriptors, timers and ended children, and calls back."""

    def __init__(self, *, clock: Clock, on_child_exit: Callable[[int, int], None]) -> None:
        self._clock = clock
        self._on_child_exit = on_child_exit
        self._selector = selectors.DefaultSelector()
        self._timers: list[tuple[float, int, Timer]] = []
        self._order = itertools.count()
        self._stopped = False
        self._wakeup, self._wakeup_writer = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        self._previous = signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.set_wakeup_fd(self._wakeup_writer, warn_on_full_buffer=False)
        self._selector.register(self._wakeup, selectors.EVENT_READ, self._children_ended)

    def watch(self, descriptor: int, callback: Callable[[int], None], *, writing: bool = False) -> None:
        """Call `callback(events)` whenever `descriptor` can be read (or, with `writing`, written too)."""
        events = selectors.EVENT_READ | (selectors.EVENT_WRITE if writing else 0)
        if descriptor in self._selector.get_map():
            self._selector.modify(descriptor, events, callback)
        else:
            self._selector.register(descriptor, events, callback)

    def unwatch(self, descriptor: int) -> None:
        """Forget about `descriptor`; unknown ones are fine."""
        if descriptor in self._selector.get_map():
            self._selector.unregister(descriptor)

    def after(self, seconds: float, callback: Callable[[], None]) -> Timer:
        """Call `callback` once, `seconds` from now by the monotonic clock: no wall clock can hasten or delay it."""
        timer = Timer(callback)
        heapq.heappush(self._timers, (self._clock.monotonic() + max(0.0, seconds), next(self._order), timer))
        return timer

    def soon(self, callback: Callable[[], None]) -> None:
        """Call `callback` in the next round."""
        self.after(0.0, callback)

    def stop(self) -> None:
        """Leave `run` after this round."""
        self._stopped = True

    def run(self) -> None:
        """Serve until `stop`."""
        self._children_ended(0)  # some may have ended before the signal handler was there
        while not self._stopped:
            self._one_round()

    def leave_in_child(self) -> None:
        """After a fork, in the child: have nothing to do with the parent's loop any more."""
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)

    def _one_round(self) -> None:
        now = self._clock.monotonic()
        wait = min(_LONGEST_WAIT_SECONDS, max(0.0, self._timers[0][0] - now)) if self._timers else None
        for key, events in self._selector.select(_LONGEST_WAIT_SECONDS if wait is None else wait):
            if key.fd in self._selector.get_map():  # an earlier callback of this round may have closed it
                key.data(events)
        due = self._clock.monotonic()
        while self._timers and self._timers[0][0] <= due:
            heapq.heappop(self._timers)[2].fire()

    def _children_ended(self, _events: int) -> None:
        try:
            while os.read(self._wakeup, 4096):
                pass
        except BlockingIOError:
            pass
        for pid, status in processes.reap().items():
            self._on_child_exit(pid, status)


class Lines:
    """JSON messages, one a line, over a stream socket that never blocks the loop."""

    def __init__(
        self,
        loop: Loop,
        connection: socket.socket,
        *,
        on_message: Callable[["Lines", dict[str, Any]], None],
        on_close: Callable[["Lines"], None],
    ) -> None:
        connection.setblocking(False)
        self._loop = loop
        self._connection = connection
        self._on_message = on_message
        self._on_close = on_close
        self._received = bytearray()
        self._unsent = bytearray()
        self._finishing = False
        self.is_open = True
        self.is_detached = False
        loop.watch(connection.fileno(), self._ready)

    def send(self, message: dict[str, Any]) -> None:
        """Queue one message; a closed connection swallows it."""
        if self.is_open:
            self._unsent += json.dumps(message, separators=(",", ":")).encode() + b"\n"
            self._flush()

    def close(self) -> None:
        """Close now, unsent messages included."""
        if self.is_open:
            self.is_open = False
            self._loop.unwatch(self._connection.fileno())
            self._connection.close()
            self._on_close(self)

    def detach(self) -> socket.socket:
        """Give the connection to somebody else; what it has received and not told yet is lost."""
        self.is_open = False
        self.is_detached = True
        self._loop.unwatch(self._connection.fileno())
        return self._connection

    @property
    def has_unsent(self) -> bool:
        """Whether messages wait for a slow reader."""
        return self.is_open and bool(self._unsent)

    def _ready(self, events: int) -> None:
        if events & selectors.EVENT_WRITE:
            self._flush()
        if events & selectors.EVENT_READ and self.is_open:
            self._read()

    def _read(self) -> None:
        try:
            chunk = self._connection.recv(65536)
        except BlockingIOError:
            return
        except OSError:
            chunk = b""
        self._received += chunk
        while self.is_open and (end := self._received.find(b"\n")) >= 0:
            line = bytes(self._received[:end])
            del self._received[: end + 1]
            try:
                message = json.loads(line)
            except ValueError:
                self.close()
                return
            self._on_message(self, message)
        if not chunk or len(self._received) > _LARGEST_MESSAGE_BYTES:
            self.close()

    def _flush(self) -> None:
        try:
            while self._unsent:
                sent = self._connection.send(self._unsent)
                del self._unsent[:sent]
        except BlockingIOError:
            pass
        except OSError:
            self.close()
            return
        if self.is_open:
            self._loop.watch(self._connection.fileno(), self._ready, writing=bool(self._unsent))
