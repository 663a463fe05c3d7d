"""The gang channel as its clients see it: a unix socket to the supervisor, one JSON object a line.

Requests are `{"op": …, "id": n, …}`, answers carry the same `id`; a streaming operation answers with several lines of
which the last has `"done": true`. The supervisor pushes `{"push": "notice", …}` to whoever said hello, so that a
notice is there without asking. Synchronous, safe to use from several threads, and from a forked child, which
connects anew (a shared socket would mix the two processes' answers).
"""

import itertools
import json
import os
import queue
import socket
import threading
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

from dsec_blocks.model.errors import ClusterError

_BROKEN: dict[str, Any] = {"ok": False, "error": "the gang's supervisor is gone; the gang is being stopped"}


class SupervisorGone(ClusterError):
    """Whoever supervised this gang has died; the gang is over, and its processes are about to be stopped."""


class Channel:
    """A connection to the gang's supervisor. Make one with `Channel.connect`."""

    def __init__(self, path: str, timeout: float) -> None:
        self._path = path
        self._timeout = timeout
        self._hello: dict[str, Any] | None = None
        self._notice: dict[str, Any] | None = None
        self._connecting, self._connecting_pid = threading.RLock(), os.getpid()
        self._open()

    @classmethod
    def connect(cls, path: str, *, timeout: float = 10) -> "Channel":
        """Connect to the supervisor that listens on `path` (`DSEC_CHANNEL`).

        Raises `ClusterError` when nobody listens there.
        """
        return cls(path, timeout)

    @property
    def notice(self) -> dict[str, Any] | None:
        """The notice the gang has been given, as last heard; None when there is none (any more)."""
        return self._notice

    def call(self, op: str, **fields: Any) -> dict[str, Any]:
        """Ask one thing and wait for the answer, however long it takes (a barrier may take long).

        Raises `ClusterError` when the supervisor refuses, `SupervisorGone` when it died.
        """
        for answer in self.stream(op, **fields):
            return answer
        raise SupervisorGone(_BROKEN["error"])

    def stream(self, op: str, **fields: Any) -> Iterator[dict[str, Any]]:
        """Ask one thing and yield every line of the answer, the one with `done` included.

        Raises `ClusterError` when the supervisor refuses, `SupervisorGone` when it dies before the end.
        """
        if op == "hello":
            self._hello = fields
        connection = self._current()
        with connection.answers() as (number, answers):
            connection.send({"op": op, "id": number, **fields})
            while True:
                line = answers.get()
                if line is _BROKEN:
                    raise SupervisorGone(_BROKEN["error"])
                if not line.get("ok"):
                    raise ClusterError(str(line.get("error")))
                answer = {name: value for name, value in line.items() if name not in ("id", "ok")}
                yield answer
                if answer.get("done"):
                    return

    def close(self) -> None:
        """Hang up."""
        self._connection.close()

    def _current(self) -> "_Connection":
        if self._connecting_pid != os.getpid():  # forked: another thread of the parent may have held the lock
            self._connecting, self._connecting_pid = threading.RLock(), os.getpid()
        with self._connecting:
            if self._connection.pid != os.getpid():  # the parent's socket and reader thread are not ours
                self._open()
                if self._hello is not None:
                    self.call("hello", **self._hello)
            return self._connection

    def _open(self) -> None:
        self._connection = _Connection(self._path, self._timeout, self._heard)

    def _heard(self, message: dict[str, Any]) -> None:
        """Take the notice of what is pushed and of answers, in the order in which they come: an answer may be taken
        up later than what was pushed after it, and knows nothing of that.
        """
        if "notice" in message:
            self._notice = message["notice"]
        elif message.get("push") == "withdrawn":
            self._notice = None


class _Connection:
    """One socket, its reader thread, and who waits for which answer."""

    def __init__(self, path: str, timeout: float, heard: Any) -> None:
        self.pid = os.getpid()
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._socket.settimeout(timeout)
        try:
            self._socket.connect(path)
        except OSError as error:
            self._socket.close()
            raise ClusterError(
                f"nobody answers on the gang channel {path} ({error.strerror or error}); "
                "is this process part of a running gang?"
            ) from error
        self._socket.settimeout(None)
        self._heard = heard
        self._numbers = itertools.count(1)
        self._waiting: dict[int, queue.SimpleQueue[dict[str, Any]]] = {}
        self._sending = threading.Lock()
        self._is_broken = False
        threading.Thread(target=self._read, name="dsec-gang-channel", daemon=True).start()

    def answers(self) -> "_Answers":
        """A number for a request, and where its answers will arrive."""
        return _Answers(self._waiting, next(self._numbers))

    def send(self, message: dict[str, Any]) -> None:
        """Send one request; a broken connection answers it with an error."""
        line = json.dumps(message, separators=(",", ":")).encode() + b"\n"
        try:
            with self._sending:
                self._socket.sendall(line)
        except OSError:
            self._break()
        if self._is_broken:
            self._break()

    def close(self) -> None:
        """Hang up; whoever waits is told."""
        with suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)

    def _read(self) -> None:
        with suppress(OSError, ValueError), self._socket.makefile("r", encoding="utf-8") as lines:
            for line in lines:
                message = json.loads(line)
                self._heard(message)
                answers = None if "push" in message else self._waiting.get(message.get("id"))
                if answers is not None:
                    answers.put(message)
        self._break()

    def _break(self) -> None:
        self._is_broken = True
        for answers in list(self._waiting.values()):
            answers.put(_BROKEN)


class _Answers:
    """The answers to one request, for as long as somebody waits for them."""

    def __init__(self, waiting: dict[int, queue.SimpleQueue[dict[str, Any]]], number: int) -> None:
        self._waiting = waiting
        self._number = number

    def __enter__(self) -> tuple[int, queue.SimpleQueue[dict[str, Any]]]:
        answers: queue.SimpleQueue[dict[str, Any]] = queue.SimpleQueue()
        self._waiting[self._number] = answers
        return self._number, answers

    def __exit__(self, *_: object) -> None:
        self._waiting.pop(self._number, None)
