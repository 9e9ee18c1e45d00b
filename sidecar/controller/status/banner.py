"""The first and the last lines of a daemon's log: version and settings at the start, the records' outcomes at
the end.

``main`` and the Daemon call it, in the controller.
"""

from __future__ import annotations

import os
import platform
from pathlib import Path
from typing import TYPE_CHECKING, Final

from sidecar.common.own_process import own_version
from sidecar.common.wording import counted
from sidecar.config.live import shown_value
from sidecar.config.settings import BY_NAME, SidecarConfig

if TYPE_CHECKING:
    from sidecar.controller.rundir.segment_store import SegmentStore

_SHOWN_CHARACTERS: Final = 120
"""The greatest number of characters shown of one value."""
_OUTCOMES: Final = ("delivered", "failed", "dead_lettered", "aborted")


def start_line(config: SidecarConfig, run_dir: Path) -> str:
    """The first line: version, process, run directory, and every setting that is not the default, with its source.
    Secrets are shown as ``***``.
    """
    python = f"Python {platform.python_version()}"
    where = f"kafka-sidecar {own_version()} starts on run dir {run_dir} (pid {os.getpid()}, {python})."
    file = f"Configuration file {config.file}." if config.file else "No configuration file."
    set_here = [
        f"{name} = {_cut(shown_value(name, config.values[name]))} ({source})"
        for name, source in config.sources.items()
        if name in BY_NAME and config.values[name] != BY_NAME[name].default
    ]
    tables = [
        counted(len(each), f"[{kind}] table")
        for kind, each in (("topics", config.topics), ("clients", config.clients))
        if each
    ]
    differs = ", ".join([*set_here, *tables])
    return f"{where} {file} " + (
        f"Not the defaults: {differs}." if differs else "All settings are the defaults."
    )


def _cut(text: str) -> str:
    return text if len(text) <= _SHOWN_CHARACTERS else f"{text[:_SHOWN_CHARACTERS]}…"


class Farewell:
    """Counts the outcomes of records from its creation on, and reports them at the end."""

    def __init__(self, store: SegmentStore, now_s: float) -> None:
        self._store = store
        self._began_s = now_s
        self._before = self._counts()

    def line(self, now_s: float) -> str:
        """The daemon's last line after a drain."""
        delivered, failed, dead, aborted = self._since()
        of_transactions = f"{aborted:,} aborted with their transactions, " if aborted else ""
        return (
            f"Drained in {now_s - self._began_s:.1f} s: {counted(delivered, 'record')} "
            f"delivered, {failed:,} failed to their senders, {of_transactions}{dead:,} became dead letters. "
            "This daemon ends."
        )

    def losses(self, left: int, folder: Path) -> tuple[str, str]:
        """(sentence about dead letters, sentence about failed records): the records that the drain could not deliver.
        Either may be empty.

        Dead letters are records of clients that are gone; they are in ``folder``. Failed ones include the ``left``
        that have no outcome.
        """
        _, failed, dead, _ = self._since()
        failed += left
        of_gone = of_others = ""
        if dead:
            what = counted(dead, "record")
            of_gone = f"{what} of clients that are gone could not be delivered before the end: they are in {folder}."
        if failed:
            who = "its sender" if failed == 1 else "their senders"
            of_others = (
                f"{counted(failed, 'record')} could not be delivered before the end and failed to {who}."
            )
        return of_gone, of_others

    def _since(self) -> list[int]:
        return [now - then for now, then in zip(self._counts(), self._before, strict=True)]

    def _counts(self) -> list[int]:
        return [self._store.total(f"records_{outcome}_total") for outcome in _OUTCOMES]
