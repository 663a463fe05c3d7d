"""Where a command finds its ledger, server and pool: option, environment, what `dsec up` recorded, default."""

from pathlib import Path

import pytest

from dsec_deployments import installation
from dsec_deployments.installation import Installation
from dsec_deployments.prefect_api import configured


@pytest.fixture(autouse=True)
def _home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("DSEC_LEDGER_URL", "PREFECT_API_URL", "PREFECT_PROFILE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("DSEC_HOME", str(tmp_path))
    monkeypatch.setenv("PREFECT_HOME", str(tmp_path / "client"))


def test_without_up_the_defaults_hold() -> None:
    assert installation.load() == Installation()


def test_what_up_recorded_is_found_again() -> None:
    ours = Installation(pool="gpus", port=4300, nodes=3, gpus=4, gpu_model="H100", owns_server=True)
    installation.save(ours)
    assert installation.load() == ours


def test_an_option_wins_over_what_was_recorded() -> None:
    installation.save(Installation(pool="gpus"))
    assert installation.load().changed(pool="other", port=None).pool == "other"


def test_the_environment_names_the_ledger_before_the_record_does(monkeypatch: pytest.MonkeyPatch) -> None:
    ours = Installation(ledger_url="sqlite:///recorded.db")
    assert ours.resolved_ledger_url() == "sqlite:///recorded.db"
    monkeypatch.setenv("DSEC_LEDGER_URL", "postgresql://elsewhere/dsec")
    assert ours.resolved_ledger_url() == "postgresql://elsewhere/dsec"


def test_a_worker_is_told_only_what_was_declared() -> None:
    told = Installation(nodes=3, gpus=4).worker_environment()
    assert told["DSEC_NODES"] == "3"
    assert told["DSEC_GPUS_PER_NODE"] == "4"
    assert "DSEC_GPU_MODEL" not in told


def test_a_server_in_the_active_prefect_profile_counts_as_configured(tmp_path: Path) -> None:
    (tmp_path / "client").mkdir()
    profile = 'active = "lab"\n[profiles.lab]\nPREFECT_API_URL = "http://lab:4200/api"\n'
    (tmp_path / "client" / "profiles.toml").write_text(profile)
    assert configured("PREFECT_API_URL") == "http://lab:4200/api"
