"""The worker's side of a gang's channel when the gang is in pods: the same calls, over TCP, let in by its token."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

from dsec_blocks.model import gang_protocol
from dsec_workers.clusters import talk
from dsec_workers.clusters.talk import NotThere, Streams

CONNECT_SECONDS = 5.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Address:
    """Where member 0's outpost listens, and what opens its door."""

    host: str
    port: int
    token: str

    def __str__(self) -> str:
        return f"{self.host}:{self.port}"


async def call(at: Address, message: dict[str, Any], *, timeout_seconds: float) -> dict[str, Any]:
    """Send one message, return the one answer. Raises as `dsec_workers.clusters.talk.call`."""
    return await talk.call(partial(_connection, at), message, on=at, timeout_seconds=timeout_seconds)


async def follow(at: Address, after: int) -> AsyncIterator[dict[str, Any]]:
    """The gang's records after number `after`, until it is gone.

    Raises `NotThere` when nobody listens, or the connection breaks.
    """
    try:
        async with aclosing(talk.records(partial(_connection, at), after)) as told:
            async for record in told:
                yield record
    except OSError as error:
        raise NotThere(f"the events of {at}: {error}") from error


@asynccontextmanager
async def _connection(at: Address) -> AsyncIterator[Streams]:
    try:
        async with asyncio.timeout(CONNECT_SECONDS):
            reader, writer = await asyncio.open_connection(at.host, at.port, limit=talk.LIMIT_BYTES)
    except (TimeoutError, OSError) as error:
        raise NotThere(f"nobody listens on {at} ({error or 'no answer'})") from error
    try:
        writer.write(talk.line_of({"token": at.token, "as": "channel", **gang_protocol.told()}))
        await writer.drain()
        answer = await talk.said(reader, at)
        if answer is None:
            raise NotThere(f"{at} hung up: the gang there is another, or its namespace's key has changed")
        gang_protocol.refuse_newer(answer, f"the outpost at {at}", upgrade="this worker")
        yield reader, writer
    finally:
        writer.close()
