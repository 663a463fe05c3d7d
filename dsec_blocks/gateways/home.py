"""Where an installation of DSec keeps its things: the one place that knows what holds when nobody says."""

import os
from collections.abc import Mapping
from pathlib import Path

from dsec_blocks.model.names import ENV_HOME, ENV_LEDGER_URL


def home_of(environment: Mapping[str, str] = os.environ) -> Path:
    """The directory that holds everything DSec keeps on this machine, absolute."""
    return Path(environment.get(ENV_HOME) or ".dsec").absolute()


def ledger_url_of(environment: Mapping[str, str] = os.environ, *, recorded: str | None = None) -> str:
    """The ledger's URL: the environment's, else what was `recorded`, else SQLite in the home."""
    return environment.get(ENV_LEDGER_URL) or recorded or f"sqlite:///{home_of(environment) / 'ledger.db'}"


def known_ledger_url(environment: Mapping[str, str] = os.environ) -> str | None:
    """The URL of a ledger that others use too: the environment's, or one that is in the home already. None: neither.

    A gang's pod has neither, and a ledger that it made for itself would be nobody else's.
    """
    named = environment.get(ENV_LEDGER_URL)
    is_there = (home_of(environment) / "ledger.db").exists()
    return named or (ledger_url_of(environment) if is_there else None)
