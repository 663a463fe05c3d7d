"""The worker's side of a gang's channel when the gang is in pods: the same calls, over TCP, let in by its token."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

from dsec_blocks.model.errors import ClusterError
from dsec_workers.clusters.local.talk import NotThere

CONNECT_SECONDS = 5.0
_LIMIT_BYTES = 16 * 2**20


@dataclass(frozen=True, slots=True, kw_only=True)
class Address:
    """Where member 0's outpost listens, and what opens its door."""

    host: str
    port: int
    token: str

    def __str__(self) -> str:
        return f"{self.host}:{self.port}"


async def call(at: Address, message: dict[str, Any], *, timeout_seconds: float) -> dict[str, Any]:
    """Send one message, return the one answer.

    Raises `NotThere` when nobody listens or the answer is cut off, `ClusterError` when it is an error or never comes.
    """
    try:
        async with asyncio.timeout(timeout_seconds):
            async with _connection(at) as (reader, writer):
                writer.write(_line(message))
                await writer.drain()
                answer = await reader.readline()
    except TimeoutError:
        raise ClusterError(f"no answer to {message['op']} from {at} within {timeout_seconds:g} s") from None
    except OSError as error:
        raise NotThere(f"{message['op']} to {at}: {error}") from error
    if not answer:
        raise NotThere(f"{message['op']} to {at}: the other side went away without an answer")
    reply: dict[str, Any] = json.loads(answer)
    if not reply.get("ok"):
        raise ClusterError(str(reply.get("error")))
    return reply


async def follow(at: Address, after: int) -> AsyncIterator[dict[str, Any]]:
    """The gang's records after number `after`, until it is gone or the connection breaks.

    Raises `NotThere` when nobody listens.
    """
    try:
        async with _connection(at) as (reader, writer):
            writer.write(_line({"op": "events", "after": after}))
            await writer.drain()
            while line := await reader.readline():
                record: dict[str, Any] = json.loads(line)
                if "seq" in record:
                    yield record
                if record.get("done"):
                    return
    except OSError as error:
        raise NotThere(f"the events of {at}: {error}") from error


@asynccontextmanager
async def _connection(at: Address) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
    try:
        async with asyncio.timeout(CONNECT_SECONDS):
            reader, writer = await asyncio.open_connection(at.host, at.port, limit=_LIMIT_BYTES)
    except (TimeoutError, OSError) as error:
        raise NotThere(f"nobody listens on {at} ({error or 'no answer'})") from error
    try:
        writer.write(_line({"token": at.token, "as": "channel"}))
        await writer.drain()
        if not await reader.readline():
            raise NotThere(f"{at} hung up: the gang there is another, or its namespace's key has changed")
        yield reader, writer
    finally:
        writer.close()


def _line(message: dict[str, Any]) -> bytes:
    return json.dumps({"id": 1, **message}).encode() + b"\n"
