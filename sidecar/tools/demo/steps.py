"""The demo's output: numbered steps with their seconds, a progress bar, one table at the end."""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Iterator
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table


class Steps:
    """Prints to standard output, or with ``stderr`` to standard error; one step at a time."""

    def __init__(self, *, stderr: bool = False) -> None:
        # In a pipe rich assumes 80 columns and would break the table's lines.
        stream = sys.stderr if stderr else sys.stdout
        self.console = Console(highlight=False, stderr=stderr, width=None if stream.isatty() else 120)
        self._number = 0

    @contextlib.contextmanager
    def step(self, text: str) -> Iterator[None]:
        """Print the present step and, when it is done, how long it took."""
        self._number += 1
        start = time.monotonic()
        self.console.print(f"[bold]{self._number}[/] {text} …")
        yield
        self.console.print(f"  [dim]{time.monotonic() - start:.1f} s[/]")

    def say(self, text: str) -> None:
        self.console.print(f"  {text}")

    def aloud(self, text: str) -> None:
        self.console.print(f"[bold yellow]{text}[/]")

    @contextlib.contextmanager
    def bar(self, what: str, total: int) -> Iterator[Any]:
        """A progress bar; yields ``update(completed)``."""
        with Progress(
            TextColumn(f"  {what}"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            console=self.console,
            transient=not self.console.is_terminal,
        ) as progress:
            task = progress.add_task(what, total=total)
            yield lambda completed: progress.update(task, completed=completed)


def rows_table(title: str, rows: list[tuple[str, str]]) -> Table:
    table = Table(title=title, title_justify="left", show_header=False)
    table.add_column("what")
    table.add_column("value", justify="right")
    for what, value in rows:
        table.add_row(what, value)
    return table
