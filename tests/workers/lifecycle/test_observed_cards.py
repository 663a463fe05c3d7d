"""Which cards a gang really has is in the ledger when its start is, or is told again."""

import pytest

from dsec_blocks.model.errors import LedgerError
from dsec_blocks.model.gangs import CARDS, GangState
from dsec_workers.clusters.protocol import GangKey, Started
from tests.blocks.ledger.gangs import known
from tests.workers.lifecycle.test_happenings import NAMES, Site, site  # noqa: F401 - a fixture


async def test_cards_that_could_not_be_written_keep_the_start_from_being_written_and_both_are_told_again(
    site: Site,  # noqa: F811
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    started = [Started(key=GangKey(name, 1), at=20.0, cards={"n1": (f"GPU-{name}",)}) for name in NAMES]
    monkeypatch.setenv("DSEC_FAULT", "ledger.observed:error")
    with pytest.raises(LedgerError, match=r"injected at ledger\.observed"):
        await site.follow(started)
    monkeypatch.delenv("DSEC_FAULT")
    await site.follow(started)
    for name in NAMES:
        gang = known(site.ledger, name)
        assert (gang.state, gang.launch) == (GangState.RUNNING, {CARDS: {"n1": [f"GPU-{name}"]}})
    assert site.writes < 2 * len(NAMES), "together, as starts are"
