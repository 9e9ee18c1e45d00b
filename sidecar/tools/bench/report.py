"""Shows results: a table in the terminal, the same as Markdown, JSON for programs."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from sidecar.tools.bench.measurement import Measurement, Ratio, Results, short
from sidecar.tools.bench.whole_file import whole_file

REACHED: Final = "reached"
MISSED: Final = "missed"
PER_SECOND: Final = "1/s"
"""The unit that is already in the name of a quantity."""


@dataclass(frozen=True)
class Sheet:
    """One table, as text: the first ``words`` columns are words, the others numbers."""

    title: str
    columns: tuple[str, ...]
    words: int
    rows: Sequence[tuple[str, ...]]


def print_results(console: Console, results: Results) -> None:
    """Print ratios first, then every measurement by its section; notes and failures come last."""
    for sheet in sheets(results):
        table = Table(title=sheet.title, title_justify="left")
        for number, name in enumerate(sheet.columns):
            table.add_column(name, justify="left" if number < sheet.words else "right")
        for row in sheet.rows:
            table.add_row(*(_coloured(cell) for cell in row))
        console.print(table)
    for note in results.notes:
        console.print(note, soft_wrap=True, markup=False)
    for failure in results.failures:
        console.print(f"[red]FAILED[/] {escape(f'{failure.part}: {failure.error}')}", soft_wrap=True)


def to_markdown(results: Results) -> str:
    """All results as Markdown, to be pasted into a page."""
    lines = []
    if results.machine:
        lines += [describe(results), ""]
    for sheet in sheets(results):
        lines += [f"**{sheet.title}**", ""]
        lines.append("| " + " | ".join(sheet.columns) + " |")
        lines.append("|" + "---|" * sheet.words + "---:|" * (len(sheet.columns) - sheet.words))
        lines += ["| " + " | ".join(_bold(cell) for cell in row) + " |" for row in sheet.rows]
        lines.append("")
    lines += [f"{note}\n" for note in results.notes]
    lines += [f"**Failed:** {each.part}: {each.error}\n" for each in results.failures]
    return "\n".join(lines)


def describe(results: Results) -> str:
    """The machine in one line."""
    machine = results.machine
    return (
        f"{machine['cpus']} cores ({machine['cpu']}), {machine['memory_gb']} GB, Linux {machine['kernel']}, "
        f"Python {machine['python']}"
    )


def write_json(path: Path, results: Results) -> None:
    write_text(path, json.dumps(results.to_dict(), indent=1) + "\n")


def write_text(path: Path, text: str) -> None:
    """Write a report; one that is there stays until this one is whole."""
    with whole_file(path) as partial:
        partial.write_text(text)


def sheets(results: Results) -> Iterator[Sheet]:
    """The tables that are worth printing, in order."""
    if results.ratios:
        ratios = [
            (each.what, short(each.ours), short(each.theirs), f"{each.value:.2f} ×", each.target, _word(each))
            for each in results.ratios
        ]
        columns = ("what", "ours", "theirs", "ratio", "promised", "")
        yield Sheet("Ratios, medians of this run", columns, 1, ratios)
    sections: dict[str, list[Measurement]] = {}
    for each in results.measurements:
        sections.setdefault(each.section, []).append(each)
    for section, found in sections.items():
        if all(each.at is not None for each in found):
            yield _curve(section, found)
        else:
            rows = [
                (each.what, each.side, _value(each), each.spread, str(len(each.values))) for each in found
            ]
            yield Sheet(section, ("what", "side", "median", "spread", "runs"), 2, rows)


def _curve(section: str, found: Sequence[Measurement]) -> Sheet:
    """A table with a row per point of the section's axis, whose name is at the end of the section, and a column per
    quantity.
    """
    names = list(dict.fromkeys(each.curve for each in found))
    cells = {(each.at, each.curve): _median_and_spread(each) for each in found}
    points = list(dict.fromkeys(each.at for each in found))
    rows = [(f"{at:,.0f}", *(cells.get((at, name), "") for name in names)) for at in points]
    units = {each.curve: each.unit for each in found}
    titles = (
        name if units[name] in name or units[name] == PER_SECOND else f"{name}, {units[name]}"
        for name in names
    )
    return Sheet(section, (section.rpartition(" by ")[2], *titles), 0, rows)


def _median_and_spread(measurement: Measurement) -> str:
    spread = f" ({measurement.spread})" if len(measurement.values) > 1 else ""
    return f"{short(measurement.median)}{spread}"


def _word(ratio: Ratio) -> str:
    return "" if ratio.is_reached is None else REACHED if ratio.is_reached else MISSED


def _coloured(cell: str) -> str:
    colour = {REACHED: "green", MISSED: "red"}.get(cell)
    return f"[{colour}]{cell}[/]" if colour else escape(cell)


def _bold(cell: str) -> str:
    return f"**{cell}**" if cell == MISSED else cell


def _value(measurement: Measurement) -> str:
    unit = "" if measurement.unit == PER_SECOND else measurement.unit
    return f"{short(measurement.median)} {unit}".rstrip()
