"""An HTTP server inside a process that lives for something else: it takes no signals, and ends when it is cancelled."""

import contextlib
import socket
from collections.abc import Iterator

import anyio
import uvicorn
from starlette.applications import Starlette

SHUTDOWN_SECONDS = 1.0


class HttpServer(uvicorn.Server):
    """Without uvicorn's own signal handling, which ends the process by the signal instead of in order."""

    def __init__(self, app: Starlette) -> None:
        super().__init__(uvicorn.Config(app, log_level="warning", lifespan="off", access_log=False, log_config=None))

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Leave them to the process."""
        yield

    async def serve_until_cancelled(self, listening: socket.socket) -> None:
        """Answer on `listening`, and let go of it in the end."""
        try:
            await self.serve(sockets=[listening])
        finally:
            with anyio.CancelScope(shield=True), anyio.move_on_after(SHUTDOWN_SECONDS):
                if self.started:
                    self.force_exit = True
                    await self.shutdown(sockets=[listening])
            listening.close()
