"""Durable effects pass the gateways, each at its own named fault point; the machine's clock is read in one place."""

from collections import Counter
from pathlib import Path

import pytest

from tests.architecture.raw_effects import clock_reads, raw_effects
from tools.fault_points import POINTS_FILE, ROOT, FaultPoint, fault_points, points_in, points_json, sources

GATEWAYS = "dsec_blocks/gateways/"
RAW_EFFECTS_ALLOWED: dict[str, tuple[set[str], str]] = {
    "dsec_blocks/ledger/transaction.py": ({"connection.commit"}, "it is the ledger's gateway"),
}
"""File → the raw calls it may make, and why."""


def test_the_shipped_packages_are_found() -> None:
    assert len(sources()) > 20


@pytest.mark.parametrize("path", sources(), ids=lambda path: str(path.relative_to(ROOT)))
def test_no_durable_effect_is_made_past_the_gateways(path: Path) -> None:
    name = str(path.relative_to(ROOT))
    if name.startswith(GATEWAYS):
        return
    allowed, _reason = RAW_EFFECTS_ALLOWED.get(name, (set(), ""))
    found = [
        f"{name}:{effect.line}: {effect.what}" for effect in raw_effects(path.read_text()) if effect.what not in allowed
    ]
    assert not found, "use dsec_blocks.gateways (files, objects, processes) or ledger.transaction, with a named at="


def test_every_exception_to_the_rule_is_still_needed() -> None:
    for name, (allowed, _reason) in RAW_EFFECTS_ALLOWED.items():
        made = {effect.what for effect in raw_effects((ROOT / name).read_text())}
        assert allowed <= made, f"{name} no longer calls {allowed - made}: take it off the list"


@pytest.mark.parametrize(
    "line",
    [
        "import os; os.replace(a, b)",
        "from os import kill as k; k(1, 9)",
        "import os; os.open(p, os.O_WRONLY | os.O_CREAT)",
        "import subprocess; subprocess.run(['true'])",
        "from subprocess import Popen; Popen(['true'])",
        "import boto3; boto3.client('s3')",
        "open(p, 'w')",
        "open(p, mode='ab')",
        "path.open('w')",
        "path.write_text('x')",
        "path.unlink()",
        "session.commit()",
        "connection.commit()",
        "import shutil; shutil.rmtree(p)",
        "self.process.terminate()",
    ],
)
def test_a_raw_effect_is_seen(line: str) -> None:
    assert list(raw_effects(line))


@pytest.mark.parametrize(
    "line",
    ["open(p)", "open(p, 'rb')", "import os; os.open(p, os.O_RDONLY)", "path.open()", "text.replace('a', 'b')"]
    + ["from dsec_blocks.gateways import files; files.write(p, b'', at='x')", "import os; os.getpid()"],
)
def test_what_has_no_durable_effect_is_let_through(line: str) -> None:
    assert not list(raw_effects(line))


@pytest.mark.parametrize("path", sources(), ids=lambda path: str(path.relative_to(ROOT)))
def test_only_the_clock_gateway_reads_the_wall_clock(path: Path) -> None:
    name = str(path.relative_to(ROOT))
    if name == "dsec_blocks/gateways/clock.py":
        assert list(clock_reads(path.read_text()))
        return
    assert not [f"{name}:{read.line}: {read.what}" for read in clock_reads(path.read_text())], "take a Clock"


@pytest.mark.parametrize(
    "line", ["import time; time.time()", "from time import time as t; t()", "import datetime; datetime.datetime.now()"]
)
def test_a_clock_read_is_seen(line: str) -> None:
    assert list(clock_reads(line))


@pytest.fixture(scope="module")
def found() -> list[FaultPoint]:
    """All fault points of the source; to look for them takes most of a second."""
    return fault_points()


def test_every_fault_point_is_a_literal(found: list[FaultPoint]) -> None:
    unnamed = [f"{point.path}:{point.line}" for point in found if point.name is None]
    assert not unnamed, "write the name of the fault point where the effect is made"


def test_every_fault_point_has_its_own_name(found: list[FaultPoint]) -> None:
    counts = Counter(point.name for point in found if point.name)
    twice = {name: [f"{p.path}:{p.line}" for p in found if p.name == name] for name, n in counts.items() if n > 1}
    assert not twice


def test_the_list_of_fault_points_equals_the_source(found: list[FaultPoint]) -> None:
    assert POINTS_FILE.read_text() == points_json(found), "run `make fault-points`"


def test_a_fault_point_without_a_literal_name_is_found() -> None:
    assert [point.name for point in points_in("files.write(p, b'', at=f'x{i}')", path="m.py")] == [None]
    assert [point.name for point in points_in("files.write(p, b'', at='x.y')", path="m.py")] == ["x.y"]
    assert not list(points_in("files.write(p, b'', at=at)", path="m.py"))
    assert not list(points_in("Started(key=k, at=clock.now())", path="m.py"))
