"""Times as users type and read them."""

from __future__ import annotations

import re
import time
from datetime import datetime

import click

_UNITS = {"s": 1, "m": 60, "h": 3_600, "d": 86_400}


class Since(click.ParamType[int]):
    """A time: ``90m``, ``2h`` or ``1d`` ago, or a local time such as ``2026-11-21T03:00``. Converted to Unix time in
    ms.
    """

    name = "time"

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> int:
        if isinstance(value, int):
            return value
        text = str(value)
        ago = re.fullmatch(r"(\d+)([smhd])", text)
        if ago:
            return int((time.time() - int(ago[1]) * _UNITS[ago[2]]) * 1000)
        try:
            return int(datetime.fromisoformat(text).timestamp() * 1000)
        except ValueError:
            self.fail(f"{text!r} is not a time: write 90m, 2h or 1d (ago), or 2026-11-21T03:00.", param, ctx)


def shown_time(wall_ms: int) -> str:
    return datetime.fromtimestamp(wall_ms / 1000).astimezone().strftime("%Y-%m-%d %H:%M:%S")


def shown_bytes(count: int) -> str:
    """``812 B``, ``1.5 KiB``, ``3.2 MiB``."""
    size = float(count)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if size < 1024 or unit == "GiB":
            return f"{size:,.0f} {unit}" if unit == "B" else f"{size:,.1f} {unit}"
        size /= 1024
    raise AssertionError("not reached")


def table(head: list[str], rows: list[list[str]], *, left: int = 1) -> str:
    """A table with column titles. The first ``left`` columns and the last are left-aligned, and numbers are
    right-aligned.
    """
    every = [head, *rows]
    widths = [max(len(row[column]) for row in every) for column in range(len(head))]
    lines = []
    for row in every:
        cells = [
            cell.ljust(width) if column < left or column == len(head) - 1 else cell.rjust(width)
            for column, (cell, width) in enumerate(zip(row, widths, strict=True))
        ]
        lines.append("  ".join(cells).rstrip())
    return "\n".join(lines)
