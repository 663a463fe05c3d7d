"""A TCP proxy in front of the Prefect server that can be cut: what is connected is reset, what comes is refused."""

import contextlib
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager


class Proxy:
    """Forwards `port` to the server's port while it is `up`."""

    def __init__(self, target: int) -> None:
        self._target = target
        self._listener: socket.socket | None = None
        self._pairs: set[socket.socket] = set()
        self._lock = threading.Lock()
        self.port = 0
        self.restore()

    @property
    def api_url(self) -> str:
        return f"http://127.0.0.1:{self.port}/api"

    def cut(self) -> None:
        """Refuse new connections and reset those there are."""
        listener, self._listener = self._listener, None
        if listener is not None:
            listener.shutdown(socket.SHUT_RDWR)
            listener.close()
        with self._lock:
            for end in self._pairs:
                with contextlib.suppress(OSError):
                    end.shutdown(socket.SHUT_RDWR)
                end.close()
            self._pairs.clear()

    def restore(self) -> None:
        """Accept again, on the same port."""
        listener = socket.socket()
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(("127.0.0.1", self.port))
        listener.listen(128)
        self.port = listener.getsockname()[1]
        self._listener = listener
        threading.Thread(target=self._accept, args=(listener,), daemon=True).start()

    def _accept(self, listener: socket.socket) -> None:
        while True:
            try:
                client, _ = listener.accept()
                server = socket.create_connection(("127.0.0.1", self._target))
            except OSError:
                return
            with self._lock:
                if self._listener is not listener:
                    client.close()
                    server.close()
                    return
                self._pairs |= {client, server}
            for source, sink in ((client, server), (server, client)):
                threading.Thread(target=self._pump, args=(source, sink), daemon=True).start()

    def _pump(self, source: socket.socket, sink: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while chunk := source.recv(65536):
                sink.sendall(chunk)
        for end in (source, sink):
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)


@contextmanager
def proxied(target: int) -> Iterator[Proxy]:
    """A proxy for one test."""
    proxy = Proxy(target)
    try:
        yield proxy
    finally:
        proxy.cut()
