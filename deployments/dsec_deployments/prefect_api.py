"""The Prefect server as the `dsec` command sees it: a few HTTP calls, without importing Prefect.

Importing Prefect takes two seconds; `dsec queue` should take a tenth of one. Writes pass a named fault point like
every other durable effect.
"""

import os
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import httpx
from tenacity import Retrying, retry_if_result, stop_after_attempt, wait_exponential_jitter

from dsec_blocks.gateways.faults import fault_point
from dsec_blocks.model.errors import DsecError, ServerUnreachable

_BUSY = frozenset({429, 502, 503})
PAGE = 200
"""The most rows that Prefect returns in one answer."""


def configured(name: str) -> str | None:
    """A Prefect setting from the environment, else from the active profile; None when neither has it."""
    if os.environ.get(name):
        return os.environ[name]
    prefect_home = Path(os.environ.get("PREFECT_HOME") or Path.home() / ".prefect")
    try:
        profiles = tomllib.loads((prefect_home / "profiles.toml").read_text())
    except (OSError, tomllib.TOMLDecodeError):
        return None
    active = os.environ.get("PREFECT_PROFILE") or profiles.get("active")
    value = profiles.get("profiles", {}).get(active, {}).get(name)
    return str(value) if value else None


_patiently = Retrying(
    retry=retry_if_result(lambda answer: answer.status_code in _BUSY),
    stop=stop_after_attempt(8),
    wait=wait_exponential_jitter(initial=0.1, max=3.0),
    retry_error_callback=lambda state: state.outcome.result() if state.outcome else None,
)
"""Asks again while the server is too busy to have done anything (on SQLite: another writer held the database)."""


class PrefectApi:
    """One Prefect server; every method raises `ServerUnreachable` with the address when it does not answer."""

    def __init__(self, url: str, *, timeout_seconds: float = 30.0) -> None:
        self.url = url.rstrip("/")
        headers = {}
        if key := configured("PREFECT_API_KEY"):
            headers["Authorization"] = f"Bearer {key}"
        auth = configured("PREFECT_API_AUTH_STRING")
        pair = tuple(auth.split(":", 1)) if auth and ":" in auth else None
        self._client = httpx.Client(base_url=self.url + "/", headers=headers, auth=pair, timeout=timeout_seconds)  # type: ignore[arg-type]

    @property
    def ui_url(self) -> str:
        """Where a person looks at this server."""
        return self.url.removesuffix("/api")

    def answers(self) -> bool:
        """Whether the server is there and healthy."""
        try:
            return self._client.get("health", timeout=3.0).status_code == httpx.codes.OK
        except httpx.HTTPError:
            return False

    def get(self, path: str) -> Any:
        """The JSON at `path`, or None for 404."""
        return self._ask("GET", path)

    def post(self, path: str, body: Mapping[str, Any] | None = None) -> Any:
        """The answer to a question that Prefect wants as a POST (filters)."""
        return self._ask("POST", path, body or {})

    def write(self, method: str, path: str, body: Mapping[str, Any], *, at: str) -> Any:
        """Change something on the server; None when it does not exist."""
        with fault_point(at):
            return self._ask(method, path, body)

    def pages(self, path: str, body: Mapping[str, Any]) -> list[Any]:
        """Every row of a filter, page by page."""
        rows: list[Any] = []
        while True:
            page = self.post(path, {**body, "limit": PAGE, "offset": len(rows)})
            rows += page
            if len(page) < PAGE:
                return rows

    def _ask(self, method: str, path: str, body: Mapping[str, Any] | None = None) -> Any:
        try:
            answer = _patiently(self._client.request, method, path.lstrip("/"), json=body)
        except httpx.HTTPError as error:
            raise ServerUnreachable(
                f"no Prefect server answers at {self.url} ({type(error).__name__}); start one with `dsec up`, "
                "or set PREFECT_API_URL to yours"
            ) from error
        if answer.status_code == httpx.codes.NOT_FOUND:
            return None
        if answer.is_error:
            raise DsecError(f"Prefect refused {method} {path}: {answer.status_code} {answer.text[:300]}")
        return answer.json() if answer.content else {}
