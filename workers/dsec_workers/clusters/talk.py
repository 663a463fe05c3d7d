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
                answer = await said(reader, on)
    except TimeoutError:
        raise ClusterError(f"no answer to {message['op']} on {on} within {timeout_seconds:g} s") from None
    except OSError as error:
        raise NotThere(f"{message['op']} on {on}: {error}") from error
    if answer is None:
        raise NotThere(f"{message['op']} on {on}: the other side went away without an answer")
    if not answer.get("ok"):
        raise ClusterError(str(answer.get("error")))
    return answer


async def records(connect: Connect, after: int) -> AsyncGenerator[dict[str, Any], None]:
    """The gang's records after number `after`, until it is gone or the other side closes.

    Raises `NotThere` when nobody listens or a record is cut off, `OSError` when the connection breaks.
    """
    async with connect() as (reader, writer):
        writer.write(line_of({"op": "events", "after": after}))
        await writer.drain()
        while (record := await said(reader, "the gang's channel")) is not None:
            if "seq" in record:
                yield record
            if record.get("done"):
                return


async def said(reader: asyncio.StreamReader, on: object) -> dict[str, Any] | None:
    """The next message; None when the other side has closed.

    Raises `NotThere` for one that is cut off: who was killed may have been in the middle of a line. Raises
    `ClusterError` for what is no message at all.
    """
    try:
        line = await reader.readline()
    except ValueError:
        raise ClusterError(f"{on} said more than {LIMIT_BYTES / 2**20:g} MiB in one message") from None
    if not line:
        return None
    if not line.endswith(b"\n"):
        raise NotThere(f"{on} went away in the middle of a message")
    try:
        message = json.loads(line)
    except ValueError as error:
        raise ClusterError(f"{on} said what is no message: {error}") from error
    if not isinstance(message, dict):
        raise ClusterError(f"{on} said what is no message")
    return message


def line_of(message: dict[str, Any]) -> bytes:
    """A message as it is sent."""
    return json.dumps({"id": 1, **message}).encode() + b"\n"
