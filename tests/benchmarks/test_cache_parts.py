"""`make bench-cache` is half an hour on a busy machine: what was measured is kept whatever becomes of the rest."""

import json
import sys
from pathlib import Path
from types import ModuleType

import pytest

from benchmarks import cache, report


@pytest.fixture
def measured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Which of the three parts were measured; the second fails the first time."""
    done: list[str] = []

    def part(name: str) -> ModuleType:
        module = ModuleType(f"fake_{name}")

        def measure() -> tuple[dict[str, float], list[dict[str, float]]]:
            done.append(name)
            if name == "b" and done.count("b") == 1:
                raise RuntimeError("the disk is full")
            return {f"figure_{name}": float(len(done))}, [{"round": 1.0}]

        module.measure, module.AIMS = measure, {f"figure_{name}": "≥ 1"}  # type: ignore[attr-defined]
        return module

    for name in cache.PARTS:
        monkeypatch.setitem(sys.modules, f"fake_{name}", part(name))
    monkeypatch.setattr(cache, "PARTS", {name: f"fake_{name}" for name in cache.PARTS})
    monkeypatch.setattr(cache, "RESULTS", tmp_path)
    monkeypatch.setattr(report, "RESULTS", tmp_path)
    return done


def run(monkeypatch: pytest.MonkeyPatch, *words: str) -> None:
    monkeypatch.setattr(sys, "argv", ["cache", *words])
    cache.main()


def figures(directory: Path) -> dict[str, float]:
    return json.loads((directory / "cache.json").read_text())["figures"]


def test_a_part_that_fails_takes_none_along_and_is_measured_later(
    measured: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(SystemExit, match="not measured: part b; again with --resume"):
        run(monkeypatch)
    assert figures(tmp_path) == {"figure_a": 1.0, "figure_c": 3.0}
    run(monkeypatch, "--resume")
    assert measured == ["a", "b", "c", "b"]
    assert figures(tmp_path) == {"figure_a": 1.0, "figure_b": 4.0, "figure_c": 3.0}


def test_one_part_alone_replaces_its_own_figures(
    measured: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(SystemExit):
        run(monkeypatch)
    run(monkeypatch, "--only", "a", "--only", "c")
    assert figures(tmp_path) == {"figure_a": 4.0, "figure_c": 5.0}
    told = json.loads((tmp_path / "cache.json").read_text())["context"]
    assert sorted(told["measured"]) == ["a", "c"] and sorted(told["parts"]) == ["a", "c"]
