"""One thin client for the API server: plain dicts in and out, one connection pool, one policy for trying again.

The generated clients build an object for every field; with thousands of pods that costs more than the requests. Their
credentials and connections are used, their models are not. Durable calls are named by the cluster's fault points.
"""

import asyncio
import random
from collections.abc import AsyncIterator, Callable, Mapping
from typing import Any
from urllib.parse import urlsplit
from urllib.request import getproxies, proxy_bypass

import orjson

from dsec_blocks.gateways.faults import fault_point
from dsec_workers.clusters.kubernetes.credentials import ClusterAccess, client_configuration
from dsec_workers.clusters.kubernetes.errors import ApiError, Expired, Overloaded, Unreachable, error_of
from dsec_workers.clusters.kubernetes.metrics import KubernetesMetrics

Object = dict[str, Any]
Objects = list[Object]
Listing = tuple[Objects, str]
"""Objects, and the resource version that they are of."""
PAGE = 500
REQUEST_SECONDS = 30.0
TRIES = 6
LISTS = 3
"""How often a list that takes too long for its own continuations is begun."""
QUIET_SECONDS = 90.0
"""Bookmarks come about once a minute."""
READ_BYTES = 2**21
_FIRST_PAUSE_SECONDS, _LONGEST_PAUSE_SECONDS = 0.25, 8.0
APPLY = "application/apply-patch+yaml"
MERGE = "application/merge-patch+json"


class Api:
    """Use as an async context manager."""

    def __init__(self, client: Any, metrics: KubernetesMetrics | None = None) -> None:
        self._client = client
        self.metrics = metrics or KubernetesMetrics()
        self._host = client.configuration.host.rstrip("/")
        self._session = _session(client.rest_client.pool_manager, self._host)
        self.calls: dict[str, int] = {}
        """Requests by method, for the figures of the benchmarks."""

    @classmethod
    async def connect(
        cls, access: ClusterAccess, *, connections: int = 64, metrics: KubernetesMetrics | None = None
    ) -> "Api":
        """A client for the cluster that `access` names.

        Raises `NoCluster` when there is none to speak to.
        """
        from kubernetes_asyncio.client import ApiClient

        configuration = await client_configuration(access)
        configuration.connection_pool_maxsize = connections
        return cls(ApiClient(configuration=configuration), metrics)

    async def __aenter__(self) -> "Api":
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Close all connections."""
        await self._session.close()
        await self._client.close()

    # --- reading --------------------------------------------------------------------------------------------------

    async def get(self, path: str) -> Object:
        """One object.

        Raises `NotFound` and the other errors of `errors`.
        """
        return await self._again("GET", path)

    async def list(
        self, path: str, *, labels: str = "", fields: str = "", heard: Callable[[], None] = lambda: None
    ) -> Listing:
        """Everything at `path`, page by page, and the resource version to watch from; `heard` is called at each page.

        A continuation that has expired in between starts the list over; raises `Expired` when that does not end.
        """
        query = {"limit": str(PAGE), "labelSelector": labels, "fieldSelector": fields}
        query = {name: value for name, value in query.items() if value}
        for _ in range(LISTS):
            try:
                return await self._pages(path, query, heard)
            except Expired as error:  # the pages of one list are of one moment, which the server keeps for minutes
                expired = error
        raise expired

    async def _pages(self, path: str, query: Mapping[str, str], heard: Callable[[], None]) -> Listing:
        items: Objects = []
        token = ""
        while True:
            page = await self._again("GET", path, query={**query, **({"continue": token} if token else {})})
            heard()
            items += page.get("items") or []
            token = page["metadata"].get("continue") or ""
            if not token:
                return items, page["metadata"]["resourceVersion"]

    async def watch(
        self, path: str, *, since: str, labels: str = "", fields: str = "", quiet_seconds: float = QUIET_SECONDS
    ) -> AsyncIterator[tuple[str, Object]]:
        """Changes after resource version `since`, until the server ends the watch: (type, object).

        Types are ADDED, MODIFIED, DELETED and BOOKMARK (whose object has only a new version).

        A connection that says nothing, not even a bookmark, for `quiet_seconds` is taken for dead.
        Raises `Expired` when `since` is too old, `Unreachable` when the connection breaks.
        """
        import aiohttp

        query = {
            "watch": "1",
            "allowWatchBookmarks": "true",
            "resourceVersion": since,
            "timeoutSeconds": str(int(quiet_seconds * 5)),
            "labelSelector": labels,
            "fieldSelector": fields,
        }
        query = {name: value for name, value in query.items() if value}
        timeout = aiohttp.ClientTimeout(total=None, sock_connect=10.0, sock_read=quiet_seconds)
        what = f"watch {path}"
        try:
            async with self._session.get(
                self._host + path, params=query, headers=await self._headers(), timeout=timeout
            ) as answer:
                self._count("WATCH")
                if answer.status != 200:
                    raise self._refusal(answer, await answer.read(), method="WATCH", what=what)
                self.metrics.request("WATCH", answer.status)
                async for line in lines_of(answer.content.iter_any()):
                    event = orjson.loads(line)
                    if event["type"] == "ERROR":
                        raise error_of(event["object"], status=int(event["object"].get("code") or 500), what=what)
                    yield event["type"], event["object"]
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            self.metrics.request("WATCH", None)
            raise Unreachable(f"{what}: {error or type(error).__name__}") from error

    # --- writing --------------------------------------------------------------------------------------------------

    async def create(self, path: str, body: Object, *, at: str, dry_run: bool = False) -> Object:
        """Create an object.

        Raises `AlreadyExists`, `Refused` (with the API server's own words), `Forbidden`, `NotFound`.
        """
        query = {"dryRun": "All"} if dry_run else {}
        with fault_point(at):
            return await self._again("POST", path, body=body, query=query)

    async def apply(self, path: str, body: Object, *, owner: str, at: str, dry_run: bool = False) -> Object:
        """Server-side apply: set exactly the fields in `body`, as `owner`; nobody else's are touched."""
        query = {"fieldManager": owner, "force": "true", **({"dryRun": "All"} if dry_run else {})}
        with fault_point(at):
            return await self._again("PATCH", path, body=body, query=query, content_type=APPLY)

    async def merge(self, path: str, body: Object, *, at: str) -> Object:
        """Merge-patch an object."""
        with fault_point(at):
            return await self._again("PATCH", path, body=body, content_type=MERGE)

    async def delete(
        self, path: str, *, at: str, uid: str | None = None, grace_seconds: int | None = None, propagation: str = ""
    ) -> None:
        """Delete an object; one that is gone already is no error.

        With `uid` only that very object: a successor of the same name is never hit. Raises `Conflict` then.
        """
        options: Object = {"apiVersion": "v1", "kind": "DeleteOptions"}
        if uid is not None:
            options["preconditions"] = {"uid": uid}
        if grace_seconds is not None:
            options["gracePeriodSeconds"] = grace_seconds
        if propagation:
            options["propagationPolicy"] = propagation
        with fault_point(at):
            try:
                await self._again("DELETE", path, body=options)
            except ApiError as error:
                if error.status != 404:
                    raise

    # --- one request ----------------------------------------------------------------------------------------------

    async def _again(
        self,
        method: str,
        path: str,
        *,
        body: Object | None = None,
        query: Mapping[str, str] | None = None,
        content_type: str = "application/json",
    ) -> Object:
        """A request, repeated while the API server is overloaded or away: all ours are safe to repeat.

        A create that was applied though its answer was lost comes back as `AlreadyExists`, which callers adopt.
        """
        for turn in range(1, TRIES + 1):
            try:
                return await self._once(method, path, body=body, query=query or {}, content_type=content_type)
            except (Overloaded, Unreachable) as error:
                if turn == TRIES:
                    raise
                await asyncio.sleep(pause_after(turn, asked=getattr(error, "retry_after", None) or 0.0))
        raise AssertionError("the loop returns or raises")

    async def _once(
        self, method: str, path: str, *, body: Object | None, query: Mapping[str, str], content_type: str
    ) -> Object:
        import aiohttp

        headers = await self._headers()
        data = None
        if body is not None:
            headers["Content-Type"] = content_type
            data = orjson.dumps(body, option=orjson.OPT_NON_STR_KEYS)
        what = f"{method} {path}"
        try:
            async with self._session.request(
                method,
                self._host + path,
                params=query,
                headers=headers,
                data=data,
                timeout=aiohttp.ClientTimeout(total=REQUEST_SECONDS),
            ) as answer:
                self._count(method)
                content = await answer.read()
                if answer.status >= 300:
                    raise self._refusal(answer, content, method=method, what=what)
                self.metrics.request(method, answer.status)
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            self.metrics.request(method, None)
            raise Unreachable(
                f"{what}: the API server at {self._host} does not answer ({error or 'no answer'})"
            ) from error
        return _json(content) or {}

    async def _headers(self) -> dict[str, str]:
        headers = {"Accept": "application/json"}
        await self._client.update_params_for_auth(headers, [], ["BearerToken"])
        return headers

    def _refusal(self, answer: Any, content: bytes, *, method: str, what: str) -> ApiError:
        asked = answer.headers.get("Retry-After") or ""
        error = error_of(
            _json(content), status=answer.status, what=what, retry_after=float(asked) if asked.isdigit() else None
        )
        self.metrics.request(method, answer.status, retry_after=error.retry_after)
        return error

    def _count(self, method: str) -> None:
        self.calls[method] = self.calls.get(method, 0) + 1


def _session(made: Any, host: str) -> Any:
    """The client's connections, without a look at the environment for each request where no proxy is to be used.

    For that look every request goes through two threads, to read a .netrc and the proxies' variables.
    """
    import aiohttp

    address = urlsplit(host)
    through_proxy = address.scheme in getproxies() and not proxy_bypass(address.hostname or "")
    return aiohttp.ClientSession(
        connector=made.connector, connector_owner=False, trust_env=through_proxy, read_bufsize=READ_BYTES
    )


async def lines_of(pieces: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    """Whole lines, however long: the HTTP client's own reader fails at 128 KiB, and one object may have 1.5 MiB.

    What comes after the last end of a line is left out: a connection that breaks cuts its last line.
    """
    rest = b""
    async for piece in pieces:
        *whole, rest = (rest + piece).split(b"\n")
        for line in whole:
            yield line


def pause_after(turn: int, *, asked: float) -> float:
    """Seconds until a request is tried again after its `turn`-th refusal, of which the server `asked` for so many.

    Retry-After is the least: those that were refused together must not come back together.
    """
    pause: float = min(_LONGEST_PAUSE_SECONDS, _FIRST_PAUSE_SECONDS * 2 ** (turn - 1))
    return asked + pause * random.uniform(0.5, 1.0)


def _json(content: bytes) -> Object | None:
    try:
        found = orjson.loads(content)
    except ValueError:
        return None
    return found if isinstance(found, dict) else None
