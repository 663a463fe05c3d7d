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


MOST_NODES = 5
"""Nodes whose data is told; the others are counted."""


def print_data(known: Sequence[Mapping[str, Any]]) -> None:
    """What nodes hold of a run's inputs, and what that weighs in its placement, a line each."""
    if not known:
        console.print("data: none of it is known to lie on a node; it is fetched from when a place is reserved")
    for row in known[:MOST_NODES]:
        console.print(f"data: {row['text']}", markup=False)
    if len(known) > MOST_NODES:
        console.print(f"data: and on {len(known) - MOST_NODES} more nodes")


WIDE = 150
"""Columns from which on a terminal has room for a sentence beside a table's other cells."""


def print_explained(
    title: str, columns: Sequence[str], rows: Iterable[Sequence[object]], *, empty: str, last: str
) -> None:
    """A table whose rows end in a sentence: in the column `last` if there is room, else on a line of its own."""
    rows = list(rows)
    if console.width >= WIDE or not rows:
        print_table(title, [*columns, last], rows, empty=empty)
        return
    with console.capture() as drawn:
        print_table(title, columns, [row[:-1] for row in rows], empty=empty, wrap=False)
    lines = drawn.get().rstrip("\n").splitlines()
    above = len(lines) - len(rows)
    console.print("\n".join(lines[:above]), markup=False)
    for line, row in zip(lines[above:], rows, strict=True):
        console.print(f"{line}\n   {row[-1]}", markup=False)


def print_table(
    title: str, columns: Sequence[str], rows: Iterable[Sequence[object]], *, empty: str, wrap: bool = True
) -> None:
    """A table, or the sentence `empty` when there is nothing to show. Columns that end in ">" are right-aligned."""
    table = Table(
        title=title, title_justify="left", header_style="bold", box=None, pad_edge=False, padding=(0, 2, 0, 0)
    )
    for column in columns:
        right = column.endswith(">")
        justify: Any = "right" if right else "left"
        table.add_column(column.rstrip(">"), justify=justify, no_wrap=not wrap, overflow="fold" if wrap else "ellipsis")
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
