"""What is deployed from where, and what cannot work is refused."""

from pathlib import Path

import pytest

from dsec_blocks.model.errors import InvalidRequest
from dsec_deployments.deployment import _entrypoint, assignments


def test_values_that_read_as_json_are_typed_others_are_text() -> None:
    read = assignments(["nodes=2", "preemptible=false", "gpu_model=H100", "grace=30s"], option="--set")
    assert read == {"nodes": 2, "preemptible": False, "gpu_model": "H100", "grace": "30s"}


def test_an_assignment_without_an_equals_sign_is_refused() -> None:
    with pytest.raises(InvalidRequest, match="--set: 'nodes' is not NAME=VALUE"):
        assignments(["nodes"], option="--set")


def test_the_only_flow_of_a_file_need_not_be_named(tmp_path: Path) -> None:
    file = tmp_path / "pipeline.py"
    file.write_text("from prefect import flow\n@flow(name='x')\ndef train(): ...\ndef other(): ...\n")
    assert _entrypoint(str(file)) == f"{file}:train"


def test_a_file_with_two_flows_asks_which(tmp_path: Path) -> None:
    file = tmp_path / "pipeline.py"
    file.write_text("import prefect\n@prefect.flow\ndef a(): ...\n@prefect.flow\ndef b(): ...\n")
    with pytest.raises(InvalidRequest, match=r"has 2 flows; name one: .*pipeline.py:a, .*pipeline.py:b"):
        _entrypoint(str(file))


def test_a_file_that_does_not_exist_is_named() -> None:
    with pytest.raises(InvalidRequest, match=r"nowhere.py does not exist"):
        _entrypoint("nowhere.py:train")
