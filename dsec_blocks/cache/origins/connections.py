"""Kept connections to HTTP servers, and ranges read from them straight into a buffer of the caller.

`http.client` and not a richer client: a fetch of many gigabytes spends its processor time in copying, and this is the
one that can receive into memory that is there already. What richer clients add (retries, pools, decoding) is either
wrong here or twenty lines.
"""

import http.client
import os
import socket
import ssl
import threading
import time
import urllib.request
from collections import defaultdict
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import lru_cache
from urllib.parse import SplitResult, urlsplit

CONNECT_SECONDS = 5.0
STALL_SECONDS = 20.0
"""How long a connection may deliver nothing before it is given up."""
_KEPT = 64
_ANSWERS_NEEDED = 4


class Connections:
    """Idle connections by server; threads share them, a forked child begins with none."""

    def __init__(self, *, stall_seconds: float = STALL_SECONDS, connect_seconds: float = CONNECT_SECONDS) -> None:
        self.stall_seconds = stall_seconds
        self.connect_seconds = connect_seconds
        self._answers = 0
        self._shortest_seconds = float("inf")
        self._lock = threading.Lock()
        self._idle: dict[tuple[str, str], list[http.client.HTTPConnection]] = defaultdict(list)
        self._pid = os.getpid()

    @property
    def latency_seconds(self) -> float | None:
        """The shortest time seen between a question and the beginning of its answer; None until there were a few.

        One alone tells how busy this machine is, or that server.
        """
        return self._shortest_seconds if self._answers >= _ANSWERS_NEEDED else None

    @contextmanager
    def request(
        self, url: str, headers: Mapping[str, str], *, method: str = "GET"
    ) -> Iterator[http.client.HTTPResponse]:
        """One answer, its body unread. The connection is kept only if the body was read to its end.

        Raises `OSError` when no answer came: nothing is tried twice, except on a kept connection that the server
        had closed meanwhile.
        """
        parts = urlsplit(url)
        place = (parts.scheme, parts.netloc)
        target = f"{parts.path or '/'}{'?' + parts.query if parts.query else ''}"
        connection, answer = self._ask(parts, place, method, target, headers)
        try:
            yield answer
        finally:
            if not (answer.isclosed() and not answer.will_close and self._keep(place, connection)):
                answer.close()
                connection.close()

    def close(self) -> None:
        """Close what is idle."""
        with self._lock:
            connections = [connection for idle in self._idle.values() for connection in idle]
            self._idle.clear()
        for connection in connections:
            connection.close()

    def _ask(
        self, parts: SplitResult, place: tuple[str, str], method: str, target: str, headers: Mapping[str, str]
    ) -> tuple[http.client.HTTPConnection, http.client.HTTPResponse]:
        while True:
            connection = self._kept(place)
            is_kept = connection is not None
            if connection is None:
                connection = _connect(parts, self.connect_seconds, self.stall_seconds)
            try:
                asked_at = time.monotonic()
                connection.request(method, _via_proxy(parts, target), headers=dict(headers))
                answer = connection.getresponse()
                self._took(time.monotonic() - asked_at)
                return connection, answer
            except (ConnectionError, http.client.RemoteDisconnected, http.client.CannotSendRequest) as error:
                connection.close()
                if not is_kept:
                    raise _as_os_error(error, parts) from error
            except (http.client.HTTPException, OSError) as error:
                connection.close()
                raise _as_os_error(error, parts) from error

    def _took(self, seconds: float) -> None:
        with self._lock:
            self._answers += 1
            self._shortest_seconds = min(seconds, self._shortest_seconds)

    def _keep(self, place: tuple[str, str], connection: http.client.HTTPConnection) -> bool:
        with self._lock:
            if len(self._idle[place]) >= _KEPT:
                return False
            self._idle[place].append(connection)
            return True

    def _kept(self, place: tuple[str, str]) -> http.client.HTTPConnection | None:
        with self._lock:
            if self._pid != os.getpid():
                self._idle.clear()
                self._pid = os.getpid()
            return self._idle[place].pop() if self._idle[place] else None


def read_body(answer: http.client.HTTPResponse, length: int, buffer: memoryview) -> Iterator[memoryview]:
    """`length` bytes of a body, `buffer` filled again and again. Raises `OSError` when the body ends before that."""
    left = length
    while left:
        room = buffer[: min(len(buffer), left)]
        filled, broken = 0, None
        try:
            while filled < len(room) and (count := answer.readinto(room[filled:])):
                filled += count
        except (http.client.HTTPException, OSError) as error:
            broken = error
        left -= filled
        if not left:
            answer.read()  # sees the end, so that the connection can be kept
        if filled:
            yield room[:filled]  # what came before a break is good
        if isinstance(broken, TimeoutError):
            raise TimeoutError("the connection delivered nothing more") from broken
        if broken is not None or filled < len(room):
            raise ConnectionError(f"the body ended {left} bytes early ({broken or 'closed'})") from broken


def _connect(parts: SplitResult, connect_seconds: float, stall_seconds: float) -> http.client.HTTPConnection:
    proxy = _proxy_for(parts)
    host, port = (proxy or parts).hostname or "", (proxy or parts).port
    connection: http.client.HTTPConnection
    if parts.scheme == "https":
        connection = http.client.HTTPSConnection(host, port, timeout=connect_seconds, context=_tls())
        if proxy is not None:
            connection.set_tunnel(parts.hostname or "", parts.port or 443)
    else:
        connection = http.client.HTTPConnection(host, port, timeout=connect_seconds)
    try:
        connection.connect()
        connection.sock.settimeout(stall_seconds)
        connection.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    except (OSError, http.client.HTTPException) as error:
        connection.close()
        raise _as_os_error(error, parts) from error
    return connection


def _as_os_error(error: Exception, parts: SplitResult) -> OSError:
    what = str(error) or type(error).__name__
    if isinstance(error, TimeoutError):
        return TimeoutError(f"{parts.netloc} does not answer in time ({what})")
    return ConnectionError(f"{parts.netloc}: {what}")


def _proxy_for(parts: SplitResult) -> SplitResult | None:
    with suppress(OSError):
        if urllib.request.proxy_bypass(parts.hostname or ""):
            return None
    proxy = urllib.request.getproxies().get(parts.scheme)
    return urlsplit(proxy if "://" in proxy else f"http://{proxy}") if proxy else None


def _via_proxy(parts: SplitResult, target: str) -> str:
    plain = parts.scheme == "http" and _proxy_for(parts) is not None
    return f"http://{parts.netloc}{target}" if plain else target


@lru_cache(maxsize=1)
def _tls() -> ssl.SSLContext:
    return ssl.create_default_context(cafile=os.environ.get("AWS_CA_BUNDLE") or None)
