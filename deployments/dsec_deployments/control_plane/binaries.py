"""The programs of the control plane: taken from where the user has them, else built once and kept outside the project.

Looked for in this order: `KUBEBUILDER_ASSETS`, the PATH, our cache. What is missing is built with Go from the modules
pinned in `tools/kube/*/go.mod` (about 7 minutes on two cores); the cache folder's name is a digest of those pins, so
another pin is another folder.
"""

import hashlib
import os
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from dsec_blocks.gateways import files, processes
from dsec_blocks.model.errors import DsecError

KUBERNETES_VERSION = "v1.36.3"
_VERSION_PACKAGE = "k8s.io/component-base/version"
_MAJOR, _MINOR, _ = KUBERNETES_VERSION.removeprefix("v").split(".")
_LINK = " ".join(
    [
        "-s -w",
        f"-X {_VERSION_PACKAGE}.gitVersion={KUBERNETES_VERSION}",
        f"-X {_VERSION_PACKAGE}.gitMajor={_MAJOR} -X {_VERSION_PACKAGE}.gitMinor={_MINOR}",
    ]
)
"""Without it the API server calls itself v0.0.0."""


class MissingBinaries(DsecError):
    """A program of the control plane is not here and cannot be built."""

    exit_code = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Program:
    """One program, the module under tools/kube that pins it, and its main package."""

    name: str
    module: str
    package: str


PROGRAMS = (
    Program(name="etcd", module="etcd", package="go.etcd.io/etcd/server/v3"),
    Program(name="kube-apiserver", module="kubernetes", package="k8s.io/kubernetes/cmd/kube-apiserver"),
    Program(
        name="kube-controller-manager", module="kubernetes", package="k8s.io/kubernetes/cmd/kube-controller-manager"
    ),
    Program(name="kube-scheduler", module="kubernetes", package="k8s.io/kubernetes/cmd/kube-scheduler"),
    Program(name="kwok", module="kwok", package="sigs.k8s.io/kwok/cmd/kwok"),
    Program(name="helm", module="helm", package="helm.sh/helm/v3/cmd/helm"),
    Program(name="kueue", module="kueue", package="sigs.k8s.io/kueue/cmd/kueue"),
)
CONTROL_PLANE = ("etcd", "kube-apiserver", "kube-controller-manager", "kube-scheduler", "kwok")
"""What a control plane needs; helm is for the chart, kueue for the benchmark beside it."""


def pins() -> Path | None:
    """The folder of pinned modules in this checkout; None for an installed package without one."""
    folder = Path(__file__).resolve().parents[3] / "tools" / "kube"
    return folder if (folder / "kubernetes" / "go.mod").exists() else None


def cache() -> Path:
    """Where built programs are kept: outside the project, one folder for each set of pins."""
    root = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    digest = hashlib.sha256()
    folder = pins()
    for path in sorted(folder.glob("*/go.*")) if folder else ():
        digest.update(path.read_bytes())
    return root / "dsec" / "kube" / digest.hexdigest()[:12]


def find(name: str) -> Path | None:
    """The program, if it is here."""
    assets = os.environ.get("KUBEBUILDER_ASSETS")
    for folder in (assets, None, str(cache())):
        found = shutil.which(name, path=folder) if folder else shutil.which(name)
        if found:
            return Path(found)
    return None


def why_not(names: tuple[str, ...] = CONTROL_PLANE) -> str | None:
    """One line that says why these programs can neither be found nor built here; None when they can."""
    missing = [name for name in names if find(name) is None]
    if not missing:
        return None
    lacking = f"{', '.join(missing)} not found in KUBEBUILDER_ASSETS or on the PATH"
    if pins() is None:
        return f"{lacking}, and this is no checkout to build from"
    if shutil.which("go") is None:
        return f"{lacking}, and there is no Go to build with"
    return None


def provide(
    names: tuple[str, ...] = CONTROL_PLANE, *, progress: Callable[[str], None] = lambda _: None
) -> dict[str, Path]:
    """Path of each program by name, built first where it is missing.

    Raises `MissingBinaries` when one can neither be found nor built.
    """
    reason = why_not(names)
    if reason is not None:
        raise MissingBinaries(f"no control plane on this machine: {reason}. Install Go 1.26 or set KUBEBUILDER_ASSETS")
    if any(find(name) is None for name in names):
        _build(names, progress)
    return {name: path for name in names if (path := find(name)) is not None}


def _build(names: tuple[str, ...], progress: Callable[[str], None]) -> None:
    folder, sources = cache(), pins()
    assert sources is not None
    folder.mkdir(parents=True, exist_ok=True)
    lock = processes.hold_lock(folder / "build.lock", blocking=True, at="kube.build.lock")
    assert lock is not None
    try:
        for program in PROGRAMS:
            if program.name in names and find(program.name) is None:
                progress(f"building {program.name} with Go (once; all of the control plane takes about 7 minutes)")
                _compile(program, sources / program.module, folder)
    finally:
        os.close(lock)


def _compile(program: Program, module: Path, folder: Path) -> None:
    partial = folder / f".{program.name}.partial"
    command = ["go", "build", "-C", str(module), "-trimpath", "-ldflags", _LINK, "-o", str(partial), program.package]
    status, output = processes.complete(
        command, env={**os.environ, "GOFLAGS": "-mod=readonly"}, at="kube.build.compile"
    )
    if status:
        words = output.decode(errors="replace").strip().splitlines()[-5:]
        raise MissingBinaries(f"building {program.name} failed: {' '.join(words)}")
    files.rename(partial, folder / program.name, at="kube.build.publish")
