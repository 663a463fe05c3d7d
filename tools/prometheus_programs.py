"""Prometheus and promtool for the tests: taken from the PATH, else Debian's package unpacked once outside the project.

`make prometheus` calls this. Nothing is installed and no root is needed: the package is only downloaded (apt checks its
signature) and unpacked into the user's cache. Where that cannot be done, one line says so.
"""

import os
import shutil
import subprocess
import tempfile
from pathlib import Path

NAMES = ("prometheus", "promtool")


def cache() -> Path:
    """Where the unpacked package is kept."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "dsec" / "prometheus"


def find(name: str) -> Path | None:
    """The program, if it is here."""
    found = shutil.which(name) or shutil.which(name, path=str(cache() / "usr" / "bin"))
    return None if found is None else Path(found)


def provide() -> str:
    """Get what is missing; one line about what came of it."""
    if all(find(name) for name in NAMES):
        return f"Prometheus is here: {find('prometheus')}"
    if shutil.which("apt-get") is None or shutil.which("dpkg-deb") is None:
        return "no Prometheus here, and this is no Debian to get it from: put prometheus and promtool on the PATH"
    cache().parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=cache().parent) as folder:
        for command in (["apt-get", "download", "prometheus"], ["sh", "-c", "dpkg-deb -x prometheus_*.deb unpacked"]):
            done = subprocess.run(command, cwd=folder, text=True, capture_output=True, check=False)
            if done.returncode:
                said = (done.stderr.strip().splitlines() or ["no reason given"])[-1]
                return f"no Prometheus here, and Debian's package could not be had: {said}"
        shutil.rmtree(cache(), ignore_errors=True)
        (Path(folder) / "unpacked").rename(cache())
    return f"Prometheus is here now: {find('prometheus')}"


if __name__ == "__main__":
    print(provide())
