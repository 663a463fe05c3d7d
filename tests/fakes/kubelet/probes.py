"""Startup, readiness and liveness probes."""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any

import anyio
import httpx

Execute = Callable[[Sequence[str], float], Awaitable[int]]
"""Runs a command in the container, for at most so many seconds; its exit status."""


async def probe(spec: Mapping[str, Any], *, address: str, execute: Execute) -> bool:
    """Ask once."""
    seconds = float(spec.get("timeoutSeconds") or 1)
    if "exec" in spec:
        return await execute(spec["exec"]["command"], seconds) == 0
    with anyio.move_on_after(seconds):
        try:
            if "tcpSocket" in spec:
                stream = await anyio.connect_tcp(spec["tcpSocket"].get("host") or address, spec["tcpSocket"]["port"])
                await stream.aclose()
                return True
            return await _get(spec["httpGet"], address)
        except (OSError, httpx.HTTPError):
            return False
    return False


async def watch(
    spec: Mapping[str, Any], *, address: str, execute: Execute, on_change: Callable[[bool], Awaitable[None]]
) -> None:
    """Ask again and again; tell each time that enough answers in a row were different from what was told before."""
    await anyio.sleep(float(spec.get("initialDelaySeconds") or 0))
    told: bool | None = None
    streak, last = 0, None
    while True:
        answer = await probe(spec, address=address, execute=execute)
        streak = streak + 1 if answer == last else 1
        last = answer
        needed = int(spec.get("successThreshold") or 1) if answer else int(spec.get("failureThreshold") or 3)
        if streak >= needed and answer != told:
            told = answer
            await on_change(answer)
        await anyio.sleep(float(spec.get("periodSeconds") or 10))


async def _get(spec: Mapping[str, Any], address: str) -> bool:
    scheme = (spec.get("scheme") or "HTTP").lower()
    url = f"{scheme}://{spec.get('host') or address}:{spec['port']}{spec.get('path') or '/'}"
    headers = {header["name"]: header["value"] for header in spec.get("httpHeaders") or ()}
    async with httpx.AsyncClient(verify=False, trust_env=False) as client:
        answer = await client.get(url, headers=headers)
    return 200 <= answer.status_code < 400
