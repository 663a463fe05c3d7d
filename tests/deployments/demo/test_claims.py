"""Claims are kept as the file that others read, and the demo succeeds only if each one held."""

import json
from pathlib import Path

from dsec_deployments.demo.claims import Claims


def test_the_file_has_name_held_figure_and_unit(tmp_path: Path) -> None:
    claims = Claims()
    claims.make("resumes at its step", True, 40, "steps")
    claims.make("cancelled stays cancelled", False, remark="it ran again")
    claims.save(tmp_path / "claims.json")
    rows = json.loads((tmp_path / "claims.json").read_text())["claims"]
    assert rows[0] == {"name": "resumes at its step", "held": True, "figure": 40, "unit": "steps"}
    assert rows[1]["held"] is False
    assert rows[1]["remark"] == "it ran again"


def test_one_claim_that_did_not_hold_fails_the_demo() -> None:
    claims = Claims()
    claims.make("a", True)
    assert claims.all_held
    claims.make("b", False)
    assert not claims.all_held


def test_a_demo_without_claims_has_not_succeeded() -> None:
    assert not Claims().all_held
