"""Which ledger a process uses for the leases of the cluster level: one that others use too, or none."""

from pathlib import Path

import pytest

from dsec_blocks.cache.site import Site
from dsec_blocks.gateways.clock import SystemClock

SITE = Site(url="s3://bucket/prefix", endpoint_url="http://127.0.0.1:9", access_key_id="a", secret_access_key="b")


def test_where_no_ledger_is_known_none_is_made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A pod's home is its own: leases in a ledger there would keep nobody from anything."""
    monkeypatch.delenv("DSEC_LEDGER_URL", raising=False)
    monkeypatch.setenv("DSEC_HOME", str(tmp_path))
    level = SITE.address().open(clock=SystemClock())
    assert level.ledger is None
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("has_one", "environment", "expected"),
    [
        (False, {}, None),
        (True, {}, "sqlite:///{home}/ledger.db"),
        (False, {"DSEC_LEDGER_URL": "postgresql://x"}, "postgresql://x"),
        (True, {"DSEC_LEDGER_URL": "postgresql://x"}, "postgresql://x"),
    ],
    ids=["neither", "the home's", "the environment's", "the environment's before the home's"],
)
def test_the_ledger_is_the_environments_or_the_one_that_the_home_has(
    has_one: bool, environment: dict[str, str], expected: str | None, tmp_path: Path
) -> None:
    if has_one:
        (tmp_path / "ledger.db").touch()
    found = SITE.address({"DSEC_HOME": str(tmp_path), **environment}).ledger_url
    assert found == (expected and expected.format(home=tmp_path))
