"""What the fork-server keeps ready equals what a flow process would have worked out itself."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = """
import json, os, ssl, sys
os.chdir(sys.argv[1])
import prefect.context
from prefect.logging import configuration
from dsec_workers.clusters.local import warmth

env = json.loads(sys.argv[2])
if sys.argv[3] == "warm":
    os.environ["PREFECT_API_URL"] = "http://somebody.else/api"
    warmth.keep_ready(env)
    assert os.environ["PREFECT_API_URL"] == "http://somebody.else/api"
os.environ.clear()
os.environ.update(env)
warmth.rebuild_prefect_context()
settings = prefect.context.get_settings_context().settings
logging = {k: str(v) for k, v in configuration.PROCESS_LOGGING_CONFIG.items()}
print(json.dumps([settings.model_dump(mode="json"), prefect.context.get_settings_context().profile.name, logging]))
"""


def answer(directory: Path, env: dict[str, str], how: str) -> object:
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(directory), json.dumps(env), how],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


@pytest.fixture
def env(tmp_path: Path) -> dict[str, str]:
    return {
        "PATH": os.environ["PATH"],
        "HOME": str(tmp_path),
        "PREFECT_HOME": str(tmp_path / "prefect"),
        "PREFECT_API_URL": "http://127.0.0.1:1/api",
        "PREFECT_LOGGING_LEVEL": "WARNING",
        "PREFECT_CLIENT_MAX_RETRIES": "9",
        "PREFECT__FLOW_RUN_ID": "differs from run to run",
    }


@pytest.mark.slow
def test_settings_and_logging_kept_ready_are_those_worked_out_anew(tmp_path: Path, env: dict[str, str]) -> None:
    work = tmp_path / "work"
    work.mkdir()
    warm = answer(work, env, "warm")
    assert warm == answer(work, env, "cold")
    assert warm[0]["api"]["url"] == "http://127.0.0.1:1/api" and warm[0]["client"]["max_retries"] == 9  # type: ignore[index]


@pytest.mark.slow
def test_a_settings_file_in_the_working_directory_is_read(tmp_path: Path, env: dict[str, str]) -> None:
    work = tmp_path / "work"
    work.mkdir()
    (work / "prefect.toml").write_text("[flows]\nheartbeat_frequency = 77\n")
    warm = answer(work, env, "warm")
    assert warm == answer(work, env, "cold")
    assert warm[0]["flows"]["heartbeat_frequency"] == 77  # type: ignore[index]


def test_tls_contexts_are_shared_a_certificate_file_and_only_those(tmp_path: Path) -> None:
    import certifi

    from dsec_workers.clusters.local.warmth import _SharedTls

    tls = _SharedTls()
    other = tmp_path / "other.pem"
    other.write_bytes(Path(certifi.where()).read_bytes())
    first = tls.create_default_context(cafile=certifi.where())
    assert tls.create_default_context(cafile=certifi.where()) is first
    assert tls.create_default_context(cafile=str(other)) is not first
    assert tls.create_default_context() is not tls.create_default_context()
    assert tls.SSLContext is type(first).__mro__[0] or isinstance(first, tls.SSLContext)
