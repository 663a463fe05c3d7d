"""What the ranks print: new lines of the files in a gang's directory, as log entries of its run in Prefect."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

LARGEST_READ_BYTES = 64 * 1024
LONGEST_LINE = 4000
LINES_A_REQUEST = 200
LEVEL = 20


def files_of(directory: Path) -> list[Path]:
    """The files that ranks and members print to."""
    return sorted(directory.glob("rank-*.log")) + sorted(directory.glob("member-*.log"))


@dataclass(kw_only=True)
class Tail:
    """Files being followed, each with the position up to which it was shipped."""

    positions: dict[Path, int] = field(default_factory=dict)

    def read(self, directory: Path, *, last: bool = False) -> list[tuple[str, str]]:
        """New whole lines of the ranks' logs in `directory`, each with its file's name; at `last`, all there is."""
        lines = []
        for path in files_of(directory):
            position = self.positions.get(path, 0)
            with path.open("rb") as file:
                file.seek(position)
                chunk = file.read(LARGEST_READ_BYTES)
            end = len(chunk) if last else chunk.rfind(b"\n") + 1
            if end == 0 and len(chunk) < LARGEST_READ_BYTES:
                continue
            whole = chunk[: end or len(chunk)]
            self.positions[path] = position + len(whole)
            for line in whole.decode(errors="replace").splitlines():
                if line.strip():
                    lines.append((path.stem, line[:LONGEST_LINE]))
            if last:
                self.positions.pop(path, None)
        return lines


def requests(lines: Sequence[tuple[str, str]], *, run_id: str, now: float) -> Iterator[list[dict[str, Any]]]:
    """The lines as entries that Prefect takes, as many as one request may have; `now` in seconds since the epoch."""
    timestamp = datetime.fromtimestamp(now, tz=UTC).isoformat()
    for start in range(0, len(lines), LINES_A_REQUEST):
        yield [
            {"name": f"dsec.{name}", "level": LEVEL, "message": line, "timestamp": timestamp, "flow_run_id": run_id}
            for name, line in lines[start : start + LINES_A_REQUEST]
        ]
