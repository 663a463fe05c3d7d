"""A policy file: what it may say, and what is said of one that may not."""

import dataclasses

import pytest

from dsec_blocks.model.errors import InvalidRequest
from dsec_blocks.model.requests import Kind
from dsec_workers.lifecycle.policy_text import (
    differences,
    field_descriptions,
    policy_from_mapping,
    policy_from_yaml,
    policy_to_yaml,
    values_of,
)
from dsec_workers.scheduling import Policy


def test_a_file_says_only_what_a_site_has_decided() -> None:
    policy = policy_from_yaml("w_age: 4\nclass_penalty_seconds: {batch: 5}\n", file="site.yaml", version="7")
    assert policy == Policy(version="7", w_age=4.0, class_penalty_seconds={Kind.BATCH: 5.0})
    assert differences(policy) == {"w_age": 4.0, "class_penalty_seconds": {"batch": 5.0}}


@pytest.mark.parametrize(
    ("text", "w_small"),
    [
        ("w_age: 2", 0.25),
        ("w_age: 2.3", 0.55),
        ("w_age: 9", 1.0),
        ("w_age: 1.75", 0.0),
        ("w_age: 3\nw_share: 2", 0.25),
        ("w_age: 3\nw_small: 0.5", 0.5),
        ("w_share: 0.5", 1.0),
    ],
)
def test_a_policy_of_before_small_went_first_was_refused_after_an_upgrade(text: str, w_small: float) -> None:
    assert policy_from_yaml(text, file="site.yaml").w_small == pytest.approx(w_small, abs=2e-6)


def test_an_empty_file_is_the_shipped_policy() -> None:
    assert policy_from_yaml("# nothing\n", file="x", version="1") == Policy()


def test_a_policy_written_out_is_read_back_as_it_was() -> None:
    policy = Policy(version="3", w_age=9, max_admissions=5, model_weights={"H100": 2.5})
    assert policy_from_yaml(policy_to_yaml(policy), file="x", version="3") == policy
    assert policy_from_mapping(values_of(policy), file="x", version="3") == policy


def test_every_field_can_be_written_and_is_described() -> None:
    names = {field.name for field in dataclasses.fields(Policy)} - {"version"}
    assert set(values_of(Policy())) == names
    assert names <= set(field_descriptions()), "a field of Policy without a string below it"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("w_agee: 3", "f.yaml: w_agee: 3: a policy has no such key; did you mean w_age?"),
        ("zzz: 3", "f.yaml: zzz: 3: a policy has no such key; `dsec policy show` lists the keys"),
        ("w_age: much", "f.yaml: w_age: 'much': this is text; write a number"),
        ("min_run_seconds: 5min", "f.yaml: min_run_seconds: '5min': this is text; write a number"),
        ("w_age: yes", "f.yaml: w_age: True: write a number"),
        ("max_admissions: 1.5", "write a whole number"),
        ("class_penalty_seconds: {foo: 3}", "f.yaml: class_penalty_seconds: {'foo': 3} (foo.[key]): Input should be"),
        ("class_penalty_seconds: 4", "f.yaml: class_penalty_seconds: 4: "),
        ("w_age: 1", "f.yaml: w_age is 1, less than w_share + w_gap + w_depth + w_small = 1.75; raise w_age"),
        ("max_age_seconds: .inf", "f.yaml: max_age_seconds"),
        ("usage_half_life_seconds: .nan", "f.yaml: usage_half_life_seconds"),
        ("version: 4", "f.yaml: version: 4: the ledger numbers policies itself; leave it out"),
        ("- a", "f.yaml: a policy is a mapping of `key: value` lines, not ['a']"),
        ("w_age: [", "f.yaml, line 1: this is not YAML"),
    ],
)
def test_what_is_wrong_is_said_with_file_key_value_and_cure(text: str, message: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        policy_from_yaml(text, file="f.yaml")
    assert message in str(caught.value) and "\n" not in str(caught.value)
