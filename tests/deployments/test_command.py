"""The command as a user meets it: quick, with one clear line for every mistake."""

import io
import json
import os
import socket
import subprocess
import sys
from contextlib import redirect_stdout
from functools import cache, partial
from pathlib import Path

import pytest
from typer.main import get_command

from dsec_deployments.cli import app
from tests.fixtures.forking import run_module
from tests.fixtures.ports import free_port

COMMANDS = [
    "up",
    "down",
    "status",
    "worker",
    "demo",
    "deploy",
    "queue",
    "explain",
    "logs",
    "prioritize",
    "evict",
    "cancel",
    "simulate",
    "what-if",
]
COMMANDS += [
    "pool",
    "team add",
    "team set",
    "team list",
    "team remove",
    "checkpoint ls",
    "checkpoint verify",
    "checkpoint export",
    "checkpoint resume",
    "checkpoint rm",
    "checkpoint gc",
    "ledger check",
    "ledger backup",
    "ledger migrate",
    "policy show",
    "policy check",
    "policy set",
    "policy shadow",
    "policy diff",
    "policy history",
    "freeze",
    "thaw",
    "drain",
    "undrain",
    "reserve",
    "unreserve",
    "override",
    "orders",
    "incident capture",
]


def dsec(*words: str, home: Path, seconds: float = 100, **environment: str) -> "subprocess.CompletedProcess[str]":
    clean = {name: value for name, value in os.environ.items() if not name.startswith(("PREFECT_", "DSEC_"))}
    settings = {"DSEC_HOME": str(home), "PREFECT_HOME": str(home / "client"), "COLUMNS": "160", **environment}
    cwd = home if home.is_dir() else home.parent  # `down --purge` takes an empty home away
    return run_module("dsec_deployments.cli", words, env={**clean, **settings}, cwd=cwd, seconds=seconds)


def help_of(command: str) -> str:
    """What `dsec COMMAND --help` prints, asked in this process: starting one takes a quarter of a second of CPU."""
    printed = io.StringIO()
    with pytest.MonkeyPatch.context() as patched, redirect_stdout(printed), pytest.raises(SystemExit) as ended:
        patched.setenv("COLUMNS", "160")
        _tree().main([*command.split(), "--help"], prog_name="dsec")
    assert ended.value.code == 0
    return printed.getvalue()


_tree = cache(partial(get_command, app))


def one_line(done: "subprocess.CompletedProcess[str]") -> str:
    """The only line on standard error."""
    lines = done.stderr.strip().splitlines()
    assert len(lines) == 1, done.stderr
    return lines[0]


HEAVY = {"alembic", "asyncio", "boto3", "httpx", "kubernetes", "numpy", "plotly", "prefect", "pydantic", "sqlalchemy"}
"""What costs a tenth of a second or more to import, or is a sign of it."""


def test_help_imports_nothing_heavy(tmp_path: Path) -> None:
    command = [sys.executable, "-X", "importtime", "-m", "dsec_deployments.cli", "--help"]
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, timeout=100, check=True)
    imported = {line.rpartition("|")[2].strip() for line in done.stderr.splitlines() if line.startswith("import time:")}
    assert "typer" in imported
    assert imported & HEAVY == set()


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_has_help_with_an_example(command: str) -> None:
    assert f"Example: dsec {command}" in " ".join(help_of(command).replace("│", " ").split())


def test_the_command_prints_the_help_that_the_tests_of_it_read(tmp_path: Path) -> None:
    done = dsec("policy", "show", "--help", home=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    printed, read = (
        text.partition("policy show [OPTIONS]")[2].split() for text in (done.stdout, help_of("policy show"))
    )
    assert printed == read != []


@pytest.mark.parametrize(
    "command", ["queue", "pool", "team list", "status", "explain x", "logs x", "ledger check", "policy show", "orders"]
)
def test_every_listing_can_be_json(command: str) -> None:
    assert "--json" in help_of(command)


def test_a_mistyped_command_ends_with_code_2(tmp_path: Path) -> None:
    done = dsec("qeue", home=tmp_path)
    assert done.returncode == 2
    assert "qeue" in done.stderr


def test_no_server_reachable_is_one_line_that_says_what_to_do(tmp_path: Path) -> None:
    done = dsec("cancel", "some-run", home=tmp_path, PREFECT_API_URL=f"http://127.0.0.1:{free_port()}/api")
    assert done.returncode == 3
    assert "no Prefect server answers" in one_line(done)
    assert "dsec up" in one_line(done)


def test_a_port_in_use_is_one_line_that_names_another(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        done = dsec("up", "--port", str(port), home=tmp_path)
    assert done.returncode == 3
    last = done.stderr.strip().splitlines()[-1]
    assert last.startswith(f"dsec: port {port} is in use")
    assert f"--port {port + 1}" in last
    assert "Traceback" not in done.stderr


def test_a_configured_server_that_does_not_answer_is_not_replaced_by_our_own(tmp_path: Path) -> None:
    done = dsec("up", home=tmp_path, PREFECT_API_URL=f"http://127.0.0.1:{free_port()}/api")
    assert done.returncode == 3
    assert "PREFECT_API_URL" in done.stderr.strip().splitlines()[-1]


def test_memory_without_a_unit_is_refused_before_anything_starts(tmp_path: Path) -> None:
    done = dsec("up", "--gpus", "2", "--gpu-memory", "80", home=tmp_path)
    assert done.returncode == 2
    assert "has no unit" in one_line(done)
    assert not list(tmp_path.iterdir())


def test_an_unreachable_ledger_is_one_line(tmp_path: Path) -> None:
    url = f"postgresql://nobody@127.0.0.1:{free_port()}/none"
    done = dsec("queue", home=tmp_path, DSEC_LEDGER_URL=url)
    assert done.returncode == 3
    assert one_line(done).startswith("dsec: ")


def test_debug_shows_where_an_error_came_from(tmp_path: Path) -> None:
    url = f"http://127.0.0.1:{free_port()}/api"
    done = dsec("cancel", "some-run", home=tmp_path, PREFECT_API_URL=url, DSEC_DEBUG="1")
    assert "Traceback" in done.stderr


@pytest.mark.slow
def test_an_empty_pool_has_empty_listings(tmp_path: Path) -> None:
    for command in ("queue", "pool"):
        done = dsec(command, "--json", home=tmp_path)
        assert done.returncode == 0, done.stderr
        assert json.loads(done.stdout) == []
    teams = json.loads(dsec("team", "list", "--json", home=tmp_path).stdout)
    assert [team["team"] for team in teams] == ["default"]


@pytest.mark.slow
def test_the_ledger_checks_and_copies_itself(tmp_path: Path) -> None:
    assert dsec("ledger", "check", home=tmp_path).stdout.strip() == "the ledger keeps every rule"
    assert dsec("ledger", "backup", "copy.db", home=tmp_path).returncode == 0
    assert (tmp_path / "copy.db").stat().st_size > 0
    assert "up to date" in dsec("ledger", "migrate", home=tmp_path).stdout


def test_shell_completion_offers_the_commands(tmp_path: Path) -> None:
    words = {"_DSEC_COMPLETE": "complete_bash", "COMP_WORDS": "dsec pri", "COMP_CWORD": "1"}
    script = Path(sys.executable).parent / "dsec"
    done = subprocess.run(
        [script], capture_output=True, text=True, env={**os.environ, **words}, timeout=60, check=False
    )
    assert "prioritize" in done.stdout
