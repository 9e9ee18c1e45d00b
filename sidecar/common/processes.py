"""Other processes of this host, as /proc shows them: whether one runs, and whether a pid is still the same one."""

from __future__ import annotations

from pathlib import Path


def process_state(pid: int) -> str | None:
    """The letter of /proc/PID/stat: R, S, T (stopped), D, Z …; None when there is no such process."""
    fields = _stat_fields(pid)
    return None if fields is None else fields[0]


def process_start_time(pid: int, *, alive: bool = False) -> int | None:
    """The start time of ``pid`` in clock ticks since boot, which tells a reused pid apart; None without such a
    process.

    ``alive``: None also for a process that has ended but was not reaped.
    """
    fields = _stat_fields(pid)
    return None if fields is None or (alive and fields[0] in {"Z", "X"}) else int(fields[19])


def _stat_fields(pid: int) -> list[str] | None:
    """The fields of /proc/PID/stat after the name, which may contain anything."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None
