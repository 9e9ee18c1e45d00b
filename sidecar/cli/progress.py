"""What a command that works for long shows meanwhile, on stderr: a bar on a terminal, a line a minute elsewhere.

A thread reads the counts, so no record costs anything for it, and a call that waits does not hold it up.
"""

from __future__ import annotations

import os
import stat
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import IO, Final, NamedTuple

from sidecar.cli.common import say

SHOWN_AFTER_S: Final = 1.0
"""Shorter work shows no bar."""
REFRESH_S: Final = 0.2
LINE_S: Final = 60.0


class WorkDone(NamedTuple):
    """How far the work has come."""

    text: str
    share: float | None
    """0 to 1; None where nobody knows how much there is to do."""


@contextmanager
def progress(work_done: Callable[[], WorkDone]) -> Iterator[None]:
    """Show what ``work_done`` returns while the block works. ``work_done`` is called in a thread."""
    is_over = threading.Event()
    show = _show_bar if _is_screen() else _print_lines
    thread = threading.Thread(target=show, args=(work_done, is_over), name="progress", daemon=True)
    thread.start()
    try:
        yield
    finally:
        is_over.set()
        thread.join()


def share_of(stream: IO[bytes]) -> Callable[[], float | None]:
    """A function that returns how much of ``stream`` has been read; None for what is no file."""
    try:
        found = os.fstat(stream.fileno())
    except (OSError, ValueError):
        return lambda: None
    if not stat.S_ISREG(found.st_mode) or not found.st_size:
        return lambda: None

    def share() -> float | None:
        try:
            # Of the descriptor and not of the stream, whose tell() another thread must not call.
            return min(os.lseek(stream.fileno(), 0, os.SEEK_CUR) / found.st_size, 1.0)
        except (OSError, ValueError):  # closed meanwhile
            return None

    return share


def _is_screen() -> bool:
    return sys.stderr.isatty() and os.environ.get("TERM", "dumb") not in {"dumb", "unknown"}


def _show_bar(work_done: Callable[[], WorkDone], is_over: threading.Event) -> None:
    if is_over.wait(SHOWN_AFTER_S):
        return
    from rich.console import Console, RenderableType
    from rich.constrain import Constrain
    from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn
    from rich.table import Column

    console = Console(stderr=True)

    class Bar(Progress):
        """Leaves room for the ^C that a terminal shows: a full line would wrap, and stay there."""

        def get_renderables(self) -> Iterator[RenderableType]:
            yield Constrain(self.make_tasks_table(self.tasks), max(console.width - 3, 1))

    with Bar(
        TextColumn("{task.description}", table_column=Column(no_wrap=True, overflow="ellipsis", ratio=3)),
        BarColumn(bar_width=None, table_column=Column(ratio=2)),
        TaskProgressColumn(),
        TimeRemainingColumn(compact=True),
        console=console,
        transient=True,
        auto_refresh=False,
        expand=True,
        # Lines that others write meanwhile appear above the bar; a stdout that a program reads is left alone.
        redirect_stdout=sys.stdout.isatty(),
    ) as shown:
        task = shown.add_task("", total=None)
        while True:
            now = work_done()
            total, done = (None, 0.0) if now.share is None else (1.0, now.share)
            shown.update(task, description=now.text, total=total, completed=done, refresh=True)
            if is_over.wait(REFRESH_S):
                return


def _print_lines(work_done: Callable[[], WorkDone], is_over: threading.Event) -> None:
    began, before = time.monotonic(), None
    while not is_over.wait(LINE_S):
        now = work_done()
        if now == before:  # such as a pipe that rests, in a service
            continue
        before = now
        share = "" if now.share is None else f", {100 * now.share:.0f} % read"
        say(f"{now.text}{share}, for {time.monotonic() - began:,.0f} s so far.")
