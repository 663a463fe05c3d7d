"""What the fork-server keeps ready, so that a flow process forked from it need not work it out again.

Three things cost a flow's start more than the flow's own requests: modules that Prefect imports on first use, its
settings and logging configuration (worked out anew from the environment, though it is the same for run after run),
and a TLS context for each of the half-dozen clients that a run makes. None of them is user code, and each is used
only where it provably is what the run would have worked out itself.
"""

import copy
import importlib
import os
import ssl
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from types import ModuleType
from typing import Any

MODULES = (
    "prefect.context",
    "prefect.deployments.steps.core",
    "prefect.deployments.steps.pull",
    "prefect.engine",
    "prefect.flow_engine",
    "prefect.task_engine",
    "prefect.filesystems",
    "anyio._backends._asyncio",
    "pydantic.v1",
    "rich._emoji_codes",
    "cloudpickle",
    "encodings.idna",
)
"""What running a flow imports sooner or later."""
_SETTINGS_FILES = (".env", "prefect.toml", "pyproject.toml")
"""Files in the working directory from which Prefect reads settings too."""
_MOST_ENVIRONMENTS = 8

_ready: dict[object, tuple[Any, dict[str, Any]]] = {}
"""environment → settings context and logging configuration"""


def import_modules() -> None:
    """Import what running a flow needs; a module that another version does not have is not missed."""
    for name in MODULES:
        with suppress(ImportError):
            importlib.import_module(name)


def keep_ready(env: Mapping[str, str]) -> None:
    """Work out settings and logging for runs with this environment. For the fork-server, between two launches."""
    key = _key(env)
    if key in _ready:
        return
    import prefect.context
    from prefect.logging import configuration

    before_context = prefect.context.GLOBAL_SETTINGS_CONTEXT
    with _environment(env):
        try:
            prefect.context.refresh_global_settings_context()
            settings = prefect.context.GLOBAL_SETTINGS_CONTEXT.settings
            path = settings.logging.config_path
            template = path if path and path.exists() else configuration.DEFAULT_LOGGING_SETTINGS_PATH
            ready = (prefect.context.GLOBAL_SETTINGS_CONTEXT, configuration.load_logging_config(template))
            certificates = settings.api.ssl_cert_file
            if certificates and Path(certificates).exists():
                _tls.create_default_context(cafile=certificates)
        finally:
            prefect.context.GLOBAL_SETTINGS_CONTEXT = before_context
    while len(_ready) >= _MOST_ENVIRONMENTS:
        del _ready[next(iter(_ready))]
    _ready[key] = ready


def rebuild_prefect_context() -> None:
    """Make Prefect forget the settings, profile and logging of the process it was imported in.

    For a forked child that is in its own environment and working directory.
    """
    import prefect.context
    from prefect.logging import configuration

    ready = None if any(Path(name).exists() for name in _SETTINGS_FILES) else _ready.get(_key(os.environ))
    if ready is None:
        prefect.context.refresh_global_settings_context()
        configuration.setup_logging(incremental=False)
        return
    prefect.context.GLOBAL_SETTINGS_CONTEXT, logging_config = ready
    load = configuration.load_logging_config
    configuration.load_logging_config = lambda path: copy.deepcopy(logging_config)
    try:
        configuration.setup_logging(incremental=False)
    finally:
        configuration.load_logging_config = load


def share_tls_contexts() -> None:
    """Have all Prefect clients of a process share one TLS context a certificate file: each costs 15 ms to make."""
    import certifi
    from prefect.client import orchestration

    _tls.create_default_context(cafile=certifi.where())
    vars(orchestration)["ssl"] = _tls


class _SharedTls(ModuleType):
    """The `ssl` module as Prefect's clients see it.

    Only contexts from a certificate file are shared: Prefect changes the others after it has made them.
    """

    def __init__(self) -> None:
        super().__init__("ssl")
        self._contexts: dict[tuple[str, int], ssl.SSLContext] = {}

    def __getattr__(self, name: str) -> Any:
        return getattr(ssl, name)

    def create_default_context(self, *args: Any, **kwargs: Any) -> ssl.SSLContext:
        """As `ssl.create_default_context`, one for each state of a certificate file."""
        cafile = kwargs.get("cafile")
        if args or set(kwargs) != {"cafile"} or not isinstance(cafile, str) or not Path(cafile).exists():
            return ssl.create_default_context(*args, **kwargs)
        key = (cafile, Path(cafile).stat().st_mtime_ns)
        if key not in self._contexts:
            self._contexts[key] = ssl.create_default_context(cafile=cafile)
        return self._contexts[key]


_tls = _SharedTls()


def _key(env: Mapping[str, str]) -> object:
    """All that settings and logging depend on, but the files in the working directory."""
    relevant = tuple(
        sorted(
            (name, value)
            for name, value in env.items()
            if name == "HOME" or (name.upper().startswith("PREFECT") and not name.upper().startswith("PREFECT__"))
        )
    )
    home = Path(env.get("PREFECT_HOME") or Path(env.get("HOME") or "~").expanduser() / ".prefect")
    profiles = Path(env.get("PREFECT_PROFILES_PATH") or home / "profiles.toml")
    return relevant, profiles.stat().st_mtime_ns if profiles.exists() else None


@contextmanager
def _environment(env: Mapping[str, str]) -> Iterator[None]:
    before = dict(os.environ)
    os.environ.clear()
    os.environ.update(env)
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(before)
