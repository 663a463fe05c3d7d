"""A TCP proxy that makes a near server a far one: a wait before each request, and a limit for each connection.

    python -m benchmarks.shaping_proxy TARGET_PORT LATENCY_SECONDS BYTES_PER_SECOND   (0: not limited)

It prints its port, and after each `count` line on its standard input the bytes sent to clients so far. Bodies are
spliced in the kernel and paced by it, so that the proxy costs next to no processor time of its own.
"""

import os
import socket
import sys
import threading
import time
from contextlib import suppress

SO_MAX_PACING_RATE = 47
_CHUNK = 1 << 20
_F_SETPIPE_SZ = 1031


class Proxy:
    """Accepts for ever."""

    def __init__(self, target_port: int, latency_seconds: float, bytes_per_second: int) -> None:
        self.sent = 0
        self._target_port = target_port
        self._latency_seconds = latency_seconds
        self._bytes_per_second = bytes_per_second
        self._lock = threading.Lock()
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=256)
        self.port = self._listener.getsockname()[1]

    def serve(self) -> None:
        """The loop."""
        while True:
            client, _ = self._listener.accept()
            server = socket.create_connection(("127.0.0.1", self._target_port))
            for end in (client, server):
                end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            if self._bytes_per_second:
                client.setsockopt(socket.SOL_SOCKET, SO_MAX_PACING_RATE, self._bytes_per_second)
            threading.Thread(target=self._ask, args=(client, server), daemon=True).start()
            threading.Thread(target=self._answer, args=(server, client), daemon=True).start()

    def _ask(self, client: socket.socket, server: socket.socket) -> None:
        with suppress(OSError):
            while request := client.recv(_CHUNK):
                if self._latency_seconds:
                    time.sleep(self._latency_seconds)
                server.sendall(request)
        with suppress(OSError):
            server.shutdown(socket.SHUT_WR)

    def _answer(self, server: socket.socket, client: socket.socket) -> None:
        import fcntl

        readable, writable = os.pipe()
        with suppress(OSError):
            fcntl.fcntl(writable, _F_SETPIPE_SZ, _CHUNK)
        try:
            while count := os.splice(server.fileno(), writable, _CHUNK):
                left = count
                while left:
                    left -= os.splice(readable, client.fileno(), left)
                with self._lock:
                    self.sent += count
        except OSError:
            pass
        finally:
            os.close(readable)
            os.close(writable)
            for end in (server, client):
                with suppress(OSError):
                    end.shutdown(socket.SHUT_RDWR)
                end.close()


def main() -> None:
    proxy = Proxy(int(sys.argv[1]), float(sys.argv[2]), int(sys.argv[3]))
    threading.Thread(target=proxy.serve, daemon=True).start()
    print(proxy.port, flush=True)
    for _ in sys.stdin:
        print(proxy.sent, flush=True)


if __name__ == "__main__":
    main()
