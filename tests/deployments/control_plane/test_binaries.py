"""Where the control plane's programs come from."""

from pathlib import Path

import pytest

from dsec_deployments.control_plane import binaries


@pytest.fixture
def bare(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A machine with an empty PATH and an empty cache."""
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.delenv("KUBEBUILDER_ASSETS", raising=False)
    return tmp_path


def program(folder: Path, name: str) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / name
    path.write_text("#!/bin/sh\n")
    path.chmod(0o755)
    return path


def test_the_users_assets_come_first_then_the_path_then_what_was_built(
    bare: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    built = program(binaries.cache(), "etcd")
    assert binaries.find("etcd") == built
    on_path = program(bare / "bin", "etcd")
    assert binaries.find("etcd") == on_path
    asset = program(bare / "assets", "etcd")
    monkeypatch.setenv("KUBEBUILDER_ASSETS", str(bare / "assets"))
    assert binaries.find("etcd") == asset


def test_without_go_one_line_names_what_is_missing(bare: Path) -> None:
    assert (binaries.why_not(("etcd", "kwok")) or "").startswith("etcd, kwok not found in KUBEBUILDER_ASSETS")
    with pytest.raises(binaries.MissingBinaries, match="there is no Go to build with"):
        binaries.provide(("etcd",))


def test_other_pins_are_another_folder(bare: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = binaries.cache()
    module = bare / "pins" / "kubernetes"
    module.mkdir(parents=True)
    (module / "go.mod").write_text("module other\n")
    monkeypatch.setattr(binaries, "pins", lambda: bare / "pins")
    assert binaries.cache() != first


def test_every_program_is_pinned_by_a_module_of_this_checkout() -> None:
    pins = binaries.pins()
    assert pins is not None
    for pinned in binaries.PROGRAMS:
        assert (pins / pinned.module / "go.sum").exists(), pinned.name
