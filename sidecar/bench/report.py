"""Results for eyes: a table in the terminal, the same as Markdown, pictures, JSON for programs."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

from rich.console import Console
from rich.table import Table

from sidecar.bench.measurement import Measurement, Results, short

SCALE = "scale by "


def print_results(console: Console, results: Results) -> None:
    """Promises first, then every measurement by its section."""
    if results.ratios:
        table = Table(title="Promised ratios, medians of this run", title_justify="left")
        for name in ("what", "ours", "theirs", "ratio", "promised", ""):
            table.add_column(name, justify="left" if name == "what" else "right")
        for ratio in results.ratios:
            word = "[green]reached[/]" if ratio.is_reached else "[red]MISSED[/]"
            table.add_row(
                ratio.what, short(ratio.ours), short(ratio.theirs), f"{ratio.value:.2f} ×", ratio.target, word
            )
        console.print(table)
    for section, measurements in _sections(results):
        table = Table(title=section, title_justify="left")
        for name in ("what", "side", "median", "spread", "runs"):
            table.add_column(name, justify="left" if name in ("what", "side") else "right")
        for each in measurements:
            table.add_row(each.what, each.side, _value(each), each.spread, str(len(each.values)))
        console.print(table)


def to_markdown(results: Results) -> str:
    """Tables of everything, to be pasted under a description of the machine."""
    lines = []
    if results.ratios:
        lines += ["| promised | ours | theirs | ratio | target | |", "|---|---|---|---|---|---|"]
        for ratio in results.ratios:
            word = "reached" if ratio.is_reached else "**missed**"
            lines.append(
                f"| {ratio.what} | {short(ratio.ours)} | {short(ratio.theirs)} | {ratio.value:.2f} × | "
                f"{ratio.target} | {word} |"
            )
        lines.append("")
    for section, measurements in _sections(results):
        lines += [f"**{section}**", "", "| what | side | median | spread | runs |", "|---|---|---|---|---|"]
        lines += [
            f"| {each.what} | {each.side} | {_value(each)} | {each.spread} | {len(each.values)} |"
            for each in measurements
        ]
        lines.append("")
    return "\n".join(lines)


def write_json(path: Path, results: Results) -> None:
    path.write_text(json.dumps(results.to_dict(), indent=1) + "\n")


def _sections(results: Results) -> Iterator[tuple[str, list[Measurement]]]:
    found: dict[str, list[Measurement]] = {}
    for each in results.measurements:
        found.setdefault(each.section, []).append(each)
    yield from found.items()


def _value(measurement: Measurement) -> str:
    return f"{short(measurement.median)} {measurement.unit}".rstrip()
