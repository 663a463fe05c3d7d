"""What the Kubernetes benchmark puts in place for others: Kueue's certificate, and a stand-in for Prefect's API."""

import inspect
from pathlib import Path

import pytest

from benchmarks.kube_kueue import metrics_certificate, self_signed
from benchmarks.kube_prefect import PromptPrefect
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
