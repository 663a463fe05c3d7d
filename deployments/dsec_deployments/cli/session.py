"""What a command works with: the installation it belongs to, its ledger, its Prefect server."""

from __future__ import annotations

import getpass
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING

from dsec_blocks.gateways.clock import SystemClock
from dsec_blocks.model.clock import Clock
from dsec_deployments import installation
from dsec_deployments.installation import Installation

if TYPE_CHECKING:
    from dsec_blocks.ledger import Ledger
    from dsec_deployments.prefect_api import PrefectApi


@dataclass
class Session:
    """Opens the ledger and the API when a command first asks for them."""

    installation: Installation
    clock: Clock = field(default_factory=SystemClock)

    @property
    def pool(self) -> str:
        """The work pool that the command is about."""
        return self.installation.pool

    @property
    def user(self) -> str:
        """Who asks, for the decision log."""
        return getpass.getuser()

    @cached_property
    def ledger(self) -> Ledger:
        """The ledger, made if there is none yet.

        Raises `LedgerOutdated` for one of an older DSec: its workers would end if a mere look migrated it.
        """
        from dsec_blocks.ledger import Ledger
        from dsec_blocks.model.errors import LedgerOutdated

        ledger = Ledger.open(self.installation.resolved_ledger_url(), clock=self.clock, migrate=False)
        if not ledger.needs_migration():
            return ledger
        found = ledger.version()
        if found:
            ledger.close()
            raise LedgerOutdated(
                f"ledger {ledger.url}: its schema is {found}, of an older DSec; upgrade the workers, which migrate it, "
                "or run `dsec ledger migrate`, which ends workers of before; nothing was touched"
            )
        ledger.migrate()
        return ledger

    @cached_property
    def prefect(self) -> PrefectApi:
        """The Prefect server: the environment's, the profile's, or the one of `dsec up`."""
        from dsec_deployments.prefect_api import PrefectApi, configured
        from dsec_deployments.prefect_server import local_url

        url = configured("PREFECT_API_URL") or self.installation.prefect_api_url
        return PrefectApi(url or local_url(self.installation.port))

    def close(self) -> None:
        """Let go of the database."""
        if "ledger" in self.__dict__:
            self.ledger.close()


@contextmanager
def session(pool: str | None = None) -> Iterator[Session]:
    """The session of one command, for `pool` or the pool of the last `dsec up`."""
    opened = Session(installation.load().changed(pool=pool))
    try:
        yield opened
    finally:
        opened.close()
