"""Speaking with a gang's supervisor, or with the fork-server, on this machine: over a unix socket."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import aclosing, asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

from dsec_workers.clusters import talk
from dsec_workers.clusters.talk import NotThere, Streams


async def call(path: Path, message: dict[str, Any], *, timeout_seconds: float) -> dict[str, Any]:
    """Send one message, return the one answer. Raises as `dsec_workers.clusters.talk.call`."""
    return await talk.call(partial(_connection, path), message, on=path, timeout_seconds=timeout_seconds)


async def follow(path: Path, after: int) -> AsyncIterator[dict[str, Any]]:
    """The gang's records after number `after`, until it is gone or the connection breaks.

    Raises `NotThere` when nobody listens.
    """
    try:
        async with aclosing(talk.records(partial(_connection, path), after)) as told:
            async for record in told:
                yield record
    except ConnectionError:
        return


@asynccontextmanager
async def _connection(path: Path) -> AsyncIterator[Streams]:
    try:
        reader, writer = await asyncio.open_unix_connection(str(path), limit=talk.LIMIT_BYTES)
    except (FileNotFoundError, ConnectionRefusedError):
        raise NotThere(f"nobody listens on {path}") from None
    try:
        yield reader, writer
    finally:
        writer.close()
