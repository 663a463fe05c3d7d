"""How results are shown: a table for people, JSON for programs."""

import dataclasses
import json
import sys
from collections.abc import Iterable, Mapping, Sequence
from enum import Enum
from typing import Any

from rich.console import Console
from rich.table import Table

console = Console(highlight=False, soft_wrap=True)
messages = Console(stderr=True, highlight=False, soft_wrap=True)
"""For progress and remarks, so that standard output carries results only."""


def print_json(value: Any) -> None:
    """`value` as JSON on standard output; dataclasses and enums included."""
    json.dump(value, sys.stdout, indent=1, default=_plain)
    sys.stdout.write("\n")


def print_table(title: str, columns: Sequence[str], rows: Iterable[Sequence[object]], *, empty: str) -> None:
    """A table, or the sentence `empty` when there is nothing to show. Columns that end in ">" are right-aligned."""
    table = Table(
        title=title, title_justify="left", header_style="bold", box=None, pad_edge=False, padding=(0, 2, 0, 0)
    )
    for column in columns:
        right = column.endswith(">")
        table.add_column(column.rstrip(">"), justify="right" if right else "left", overflow="fold")
    for row in rows:
        table.add_row(*("" if cell is None else str(cell) for cell in row))
    if table.row_count:
        console.print(table, soft_wrap=False)
    else:
        console.print(empty)


def _plain(value: Any) -> Any:
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {f.name: getattr(value, f.name) for f in dataclasses.fields(value)}
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, Mapping):
        return dict(value)
    if isinstance(value, (set, frozenset)):
        return sorted(value)
    return str(value)
