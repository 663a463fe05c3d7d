"""What the Kubernetes benchmark puts in place for others: Kueue's certificate, and a stand-in for Prefect's API."""

import inspect
from pathlib import Path

import pytest

from benchmarks import kube
from benchmarks.kube_kueue import metrics_certificate, self_signed, why_not
from benchmarks.kube_prefect_played import PromptPrefect
from benchmarks.kube_shapes import PLAIN, scenarios
from dsec_workers.prefect_api import PrefectApi


def test_the_certificate_goes_with_every_folder_that_was_made_for_it(tmp_path: Path) -> None:
    folder = tmp_path / "kueue" / "metrics" / "certs"
    with metrics_certificate(*self_signed(), folder=folder):
        assert b"BEGIN CERTIFICATE" in (folder / "tls.crt").read_bytes()
        assert b"PRIVATE KEY" in (folder / "tls.key").read_bytes()
    assert list(tmp_path.iterdir()) == []


def test_a_certificate_that_was_there_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "tls.crt").write_text("the user's")
    with metrics_certificate(*self_signed(), folder=tmp_path):
        assert (tmp_path / "tls.crt").read_text() == "the user's"
    assert [path.name for path in tmp_path.iterdir()] == ["tls.crt"]


def test_the_certificate_goes_when_what_it_was_for_fails(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError, match="ended"), metrics_certificate(*self_signed(), folder=tmp_path / "certs"):
        raise RuntimeError("the manager ended")
    assert list(tmp_path.iterdir()) == []


def test_the_stand_in_has_no_method_that_the_real_api_has_not() -> None:
    def public(kind: type) -> set[str]:
        return {name for name, _ in inspect.getmembers(kind, inspect.isfunction) if not name.startswith("_")}

    assert public(PromptPrefect) - public(PrefectApi) == {"schedule", "complete"}


async def test_a_run_that_the_stand_in_knows_can_be_claimed_and_waits_again() -> None:
    prefect = PromptPrefect()
    prefect.schedule("run", {"label": "value"}, {})
    claimed = await prefect.claim_pending("run", "Claimed")
    run = await prefect.run("run")
    assert claimed.accepted
    assert run is not None
    assert (run.state.type, run.state.message) == ("PENDING", "Claimed")
    assert await prefect.runs(["run", "other"], types=["SCHEDULED"]) == {}


async def test_a_run_whose_pods_have_ended_well_is_completed_as_its_engine_would_have_done() -> None:
    prefect = PromptPrefect()
    prefect.schedule("run", {}, {"annotation": "value"})
    await prefect.claim_pending("run", "Claimed")
    prefect.complete("run")
    run = await prefect.run("run")
    assert run is not None
    assert (run.state.type, run.job_variables["annotations"]) == ("COMPLETED", {"annotation": "value"})


@pytest.fixture
def without_go(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A machine that has none of the programs and nothing to build them with."""
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.delenv("KUBEBUILDER_ASSETS", raising=False)


def test_where_kueue_cannot_be_built_the_reason_is_one_line(without_go: None) -> None:
    why = why_not()
    assert why == "kueue not found in KUBEBUILDER_ASSETS or on the PATH, and there is no Go to build with"


async def test_a_measurement_that_fails_is_a_row_that_says_why_and_leaves_the_others(without_go: None) -> None:
    options = kube.Options(patience_seconds=1.0, ledger="sqlite")
    row = await kube.attempted(scenarios(0.01)["a"], PLAIN, options, lambda *_: None)
    assert (row["scenario"], row["system"], row["wall_s"]) == ("jobs4000", PLAIN, None)
    assert row["note"].startswith("MissingBinaries: no control plane on this machine")


def test_where_no_bar_can_be_drawn_each_step_is_said_once_and_not_each_of_its_pods() -> None:
    said: list[str] = []
    spoken = kube.Spoken("jobs4000 ours", say=said.append)
    for count in range(100):
        spoken("jobs", count, 4000)
    spoken("urgent", 0, 1)
    assert said == ["jobs4000 ours: jobs, 0 of 4000", "jobs4000 ours: urgent, 0 of 1"]
