"""The worker's side of a gang's channel and of the fork-server's socket: one short call, or one long stream."""

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

from dsec_blocks.model.errors import ClusterError

_LIMIT_BYTES = 16 * 2**20


class NotThere(ClusterError):
    """Nobody listens on the socket, or whoever did went away before the answer."""


async def call(path: Path, message: dict[str, Any], *, timeout_seconds: float) -> dict[str, Any]:
    """Send one message, return the one answer.

    Raises `NotThere` when nobody listens or the answer is cut off, `ClusterError` when it is an error or never comes.
    """
    try:
        async with asyncio.timeout(timeout_seconds):
            reader, writer = await asyncio.open_unix_connection(str(path), limit=_LIMIT_BYTES)
            try:
                writer.write(_line(message))
                await writer.drain()
                answer = await reader.readline()
            finally:
                writer.close()
    except (FileNotFoundError, ConnectionRefusedError):
        raise NotThere(f"nobody listens on {path}") from None
    except TimeoutError:
        raise ClusterError(f"no answer to {message['op']} on {path} within {timeout_seconds:g} s") from None
    except OSError as error:
        raise NotThere(f"{message['op']} on {path}: {error}") from error
    if not answer:
        raise NotThere(f"{message['op']} on {path}: the other side went away without an answer")
    reply: dict[str, Any] = json.loads(answer)
    if not reply.get("ok"):
        raise ClusterError(str(reply.get("error")))
    return reply


async def follow(path: Path, after: int) -> AsyncIterator[dict[str, Any]]:
    """The gang's records after number `after`, until it is gone or the connection breaks.

    Raises `NotThere` when nobody listens.
    """
    try:
        reader, writer = await asyncio.open_unix_connection(str(path), limit=_LIMIT_BYTES)
    except (FileNotFoundError, ConnectionRefusedError):
        raise NotThere(f"nobody listens on {path}") from None
    try:
        writer.write(_line({"op": "events", "after": after, "id": 1}))
        await writer.drain()
        while line := await reader.readline():
            record: dict[str, Any] = json.loads(line)
            if "seq" in record:
                yield record
            if record.get("done"):
                return
    except ConnectionError:
        return
    finally:
        writer.close()


def _line(message: dict[str, Any]) -> bytes:
    return json.dumps({"id": 1, **message}).encode() + b"\n"
