"""The worker's side of a gang's channel, wherever it leads: one short call, or one long stream.

How a connection is made is the adapter's; what is said on it is the same, and is here.
"""

import asyncio
import json
from collections.abc import AsyncGenerator, Callable
from contextlib import AbstractAsyncContextManager
from typing import Any, TypeAlias

from dsec_blocks.model.errors import ClusterError

LIMIT_BYTES = 16 * 2**20
Streams: TypeAlias = tuple[asyncio.StreamReader, asyncio.StreamWriter]
Connect: TypeAlias = Callable[[], AbstractAsyncContextManager[Streams]]
"""A connection for one `async with`; entering raises `NotThere` when nobody listens."""


class NotThere(ClusterError):
    """Nobody listens, or whoever did went away before the answer."""


async def call(connect: Connect, message: dict[str, Any], *, on: object, timeout_seconds: float) -> dict[str, Any]:
    """Send one message, return the one answer; `on` names the other side in errors.

    Raises `NotThere` when nobody listens or the answer is cut off, `ClusterError` when it is an error or never comes.
    """
    try:
        async with asyncio.timeout(timeout_seconds):
            async with connect() as (reader, writer):
                writer.write(line_of(message))
                await writer.drain()
                answer = await reader.readline()
    except TimeoutError:
        raise ClusterError(f"no answer to {message['op']} on {on} within {timeout_seconds:g} s") from None
    except OSError as error:
        raise NotThere(f"{message['op']} on {on}: {error}") from error
    if not answer:
        raise NotThere(f"{message['op']} on {on}: the other side went away without an answer")
    reply: dict[str, Any] = json.loads(answer)
    if not reply.get("ok"):
        raise ClusterError(str(reply.get("error")))
    return reply


async def records(connect: Connect, after: int) -> AsyncGenerator[dict[str, Any], None]:
    """The gang's records after number `after`, until it is gone or the other side closes.

    Raises `NotThere` when nobody listens, `OSError` when the connection breaks.
    """
    async with connect() as (reader, writer):
        writer.write(line_of({"op": "events", "after": after}))
        await writer.drain()
        while line := await reader.readline():
            record: dict[str, Any] = json.loads(line)
            if "seq" in record:
                yield record
            if record.get("done"):
                return


def line_of(message: dict[str, Any]) -> bytes:
    """A message as it is sent."""
    return json.dumps({"id": 1, **message}).encode() + b"\n"
