"""Reading CSV with errors for people: file, line, column, what would do."""

import csv
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from dsec_blocks.model.errors import InvalidRequest
from dsec_blocks.model.requests import GangRequest

NO_LIMIT = 1e12
"""Above it a number is none that anybody meant."""


def rows(path: Path, needed: Sequence[str]) -> Iterator[tuple[int, Mapping[str, str]]]:
    """Line number and fields of every row. Raises `InvalidRequest` for a file that is no such table."""
    with opened(path) as lines:
        table = csv.DictReader(lines)
        missing = [name for name in needed if name not in (table.fieldnames or ())]
        if missing:
            there = ", ".join(table.fieldnames or ("nothing",))
            raise InvalidRequest(f"{path}: there is no column {missing[0]!r}; the first line has {there}")
        for row in table:
            if None in row or None in row.values():
                raise InvalidRequest(f"{path}, line {table.line_num}: the row has not as many fields as the first line")
            yield table.line_num, row


@contextmanager
def opened(path: Path) -> Iterator[Iterator[str]]:
    """The lines of a text file."""
    try:
        with path.open(encoding="utf-8", newline="") as file:
            yield file
    except OSError as error:
        raise InvalidRequest(f"{path}: cannot be read ({error.strerror}); give the path of a trace file") from None
    except UnicodeDecodeError:
        raise InvalidRequest(f"{path}: is not UTF-8 text; give a CSV file") from None


def number(text: str, *, path: Path, line: int, column: str, low: float = 0.0, high: float = NO_LIMIT) -> float:
    """A number in a field."""
    try:
        value = float(text)
    except ValueError:
        value = float("nan")
    if not low <= value <= high:
        most = f" and at most {high:g}" if high < NO_LIMIT else ""
        raise InvalidRequest(f"{path}, line {line}: {column} is {text!r}; a number of at least {low:g}{most} is needed")
    return value


def whole(text: str, *, path: Path, line: int, column: str, low: int = 0) -> int:
    """A whole number in a field."""
    value = number(text, path=path, line=line, column=column, low=low)
    if value != int(value):
        raise InvalidRequest(f"{path}, line {line}: {column} is {text!r}; a whole number is needed")
    return int(value)


class Requests:
    """Equal requests are one object, so that a replay can tell kinds of jobs apart quickly."""

    def __init__(self) -> None:
        self._known: dict[tuple[object, ...], GangRequest] = {}

    def request(self, devices: int, *, per_node: int = 8, **fields: Any) -> GangRequest:
        """A gang of `devices`, spread evenly over as few nodes as `per_node` devices allow."""
        nodes = max(1, -(-devices // per_node))
        return self.shape(nodes, -(-devices // nodes), **fields)

    def shape(self, nodes: int, devices_per_node: int, **fields: Any) -> GangRequest:
        """A gang of this shape."""
        key = (nodes, devices_per_node, *sorted(fields.items()))
        if key not in self._known:
            self._known[key] = GangRequest(nodes=nodes, devices_per_node=devices_per_node, **fields)
        return self._known[key]
