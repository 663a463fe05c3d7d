"""What the gang's processes print, on the container's own output: `kubectl logs` and log shippers look nowhere else."""

import sys
from pathlib import Path

from dsec_workers.clusters.local.loop import Loop

_INTERVAL_SECONDS = 0.5
_LARGEST_READ_BYTES = 2**18


class LogTail:
    """Follows the `*.log` files of a gang's directory."""

    def __init__(self, loop: Loop, directory: Path) -> None:
        self._loop, self._directory = loop, directory
        self._positions: dict[Path, int] = {}

    def start(self) -> None:
        """Follow until the loop ends."""
        self.flush(whole_lines=True)
        self._loop.after(_INTERVAL_SECONDS, self.start)

    def flush(self, *, whole_lines: bool = False) -> None:
        """Print what is new."""
        for path in sorted(self._directory.glob("*.log")):
            with path.open("rb") as file:
                file.seek(self._positions.get(path, 0))
                chunk = file.read(_LARGEST_READ_BYTES)
            end = chunk.rfind(b"\n") + 1 if whole_lines and len(chunk) < _LARGEST_READ_BYTES else len(chunk)
            self._positions[path] = self._positions.get(path, 0) + end
            for line in chunk[:end].decode(errors="replace").splitlines():
                print(f"[{path.stem}] {line}", file=sys.stdout)
        sys.stdout.flush()
