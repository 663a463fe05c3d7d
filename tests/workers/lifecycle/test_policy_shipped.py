"""The policy file that DSec ships is the policy that DSec plans by."""

from pathlib import Path

import yaml

import dsec_deployments
from dsec_workers.lifecycle.policy_text import values_of
from dsec_workers.scheduling import Policy

SHIPPED = Path(dsec_deployments.__file__).parent / "templates" / "policy.yaml"


def test_the_shipped_file_says_what_the_code_says() -> None:
    told = yaml.safe_load(SHIPPED.read_text())
    assert told == values_of(Policy()), "write it again: dsec policy show --shipped > " + str(SHIPPED)
