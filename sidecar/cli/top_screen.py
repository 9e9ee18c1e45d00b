"""The screen of ``kafka-sidecar top``: its tables for a terminal, cut to the terminal's height."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import compress
from typing import Final

from rich.columns import Columns
from rich.console import Console, Group, RenderableType
from rich.table import Table as RichTable
from rich.text import Text

from sidecar.cli.top_tables import Sample, Table, head, tables_of, text_of
from sidecar.common.wording import counted, printable

_ALWAYS: Final = ("records accepted", "records delivered")
"""Shown on a screen even if nothing was counted."""
_TEXTS: Final = frozenset({"last error", "text", "last death"})
"""Columns whose cells may wrap to several lines."""
_NAMES: Final = frozenset({"topic", "client"})
"""Columns that are cut to a third of the screen: a name may have 249 characters, and numbers must stay whole."""
_BAD: Final = frozenset({"down", "silent", "unreachable", "refusing", "stopped"})
_SIDE_BY_SIDE: Final = frozenset({"rate", "now"})
"""Tables of few rows, which are next to each other at the top and are shown whole."""


def screen(sample: Sample, sort: str, rows: int, *, is_reversed: bool, console: Console) -> RenderableType:
    """The tables without empty columns, and without rates of events that never happened.

    They fit the terminal: with fewer rows of each table, then without the last tables. The last line counts the rows
    that are missing.
    """
    tables = tables_of(sample, sort, rows, flips=is_reversed)
    missing = sum(map(_length, tables))

    def fits(tables: Sequence[Table], rows: int) -> bool:
        return (
            len(console.render_lines(_group(sample, tables, rows, 0, console.width), pad=False))
            <= console.height
        )

    while tables and not fits(tables, 1):
        tables.pop()
    low, high = 1, max([rows, *map(_length, tables)])
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if fits(tables, middle) else (low, middle - 1)
    missing -= sum(min(_length(table), low) for table in tables)
    return _group(sample, tables, low, missing, console.width)


def _length(table: Table) -> int:
    return 0 if table.word in _SIDE_BY_SIDE else len(table.rows)


def _group(sample: Sample, tables: Sequence[Table], rows: int, missing: int, width: int) -> Group:
    colour = (
        "green" if sample.info["state"] == "running" else "red" if sample.info["state"] in _BAD else "yellow"
    )
    state, *more = head(sample)
    above = [
        Text.assemble(("kafka-sidecar ", "bold"), printable(str(sample.info["run_dir"]))),
        Text(state, style=f"bold {colour}"),
        *map(Text, more),
    ]
    side_by_side = [_table(each, each.rows, width) for each in tables if each.word in _SIDE_BY_SIDE]
    below = [_table(each, each.rows[:rows], width) for each in tables if each.word not in _SIDE_BY_SIDE]
    keys = "s sorts, r reverses, q ends"
    if missing:
        keys = f"… {counted(missing, 'more row')}: make the window taller. {keys}"
    return Group(*above, Columns(side_by_side, padding=(1, 4)), *below, Text(keys, style="dim", no_wrap=True))


def _table(table: Table, rows: Sequence[Sequence[str | int | float]], width: int) -> RichTable:
    made = RichTable(
        title=table.title or None, title_justify="left", title_style="bold", box=None, pad_edge=False
    )
    shown = [row for row in rows if table.word != "rate" or row[-1] or row[0] in _ALWAYS]
    filled = [any(row[index] != "" for row in shown) for index in range(len(table.columns))]
    for title, cell in compress(zip(table.columns, shown[0], strict=True), filled):
        made.add_column(
            title,
            justify="right" if isinstance(cell, int | float) else "left",
            header_style="dim",
            no_wrap=title not in _TEXTS,
            max_width=max(width // 3, 12) if title in _NAMES else None,
        )
    for row in shown:
        style = "red" if any(cell in _BAD for cell in row) else None
        made.add_row(*(Text(text_of(cell)) for cell in compress(row, filled)), style=style)
    return made
