"""A worker that leads a pool, with no Prefect server: for what it does before it asks one."""

import logging
from pathlib import Path
from typing import Any, cast

import anyio

from dsec_blocks.ledger import Ledger
from dsec_workers.lifecycle.leading import Leading
from dsec_workers.metrics import WorkerMetrics
from dsec_workers.scheduling import Policy, plan
from dsec_workers.settings import WorkerSettings
from tests.blocks.ledger.gangs import POOL
from tests.fixtures.clock import ManualClock


def candidate_of(cluster: object, ledger: Ledger, clock: ManualClock, home: Path) -> Leading:
    """`cluster` answers as much of the protocol as the test needs."""
    nothing = cast(Any, None)
    return Leading(
        pool=POOL, settings=WorkerSettings(home=home, ledger_url="", holder="leader"), clock=clock, ledger=ledger,
        api=nothing, client=None, cluster=cast(Any, cluster), plan=plan, policy=Policy(), launch_settings=nothing,
        pool_id=lambda: None, log=logging.getLogger("dsec.test"), drain=anyio.Event(), metrics=WorkerMetrics(POOL),
    )  # fmt: skip
