"""Checks the host's clock: tokens, certificates and record timestamps depend on it.

`kafka-sidecar doctor` calls it, in the command's process.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from typing import Final

from sidecar.doctor.findings import Finding

# struct timex (adjtimex(2)): modes, offset, freq, maxerror, esterror, status, ...
_TIMEX_BYTES: Final = 512
_MAX_ERROR_AT: Final = 24
_STATUS_AT: Final = 40
_UNSYNCHRONIZED: Final = 0x40


def clock_findings() -> Iterator[Finding]:
    """Whether the clock is synchronised (by chrony, systemd-timesyncd or the hypervisor), according to the kernel."""
    timex = ctypes.create_string_buffer(_TIMEX_BYTES)
    if ctypes.CDLL(None, use_errno=True).adjtimex(timex) < 0:  # modes 0: only reads
        yield Finding("warn", "The state of the clock cannot be read (adjtimex).")
        return
    yield judge_clock(
        int.from_bytes(timex.raw[_STATUS_AT : _STATUS_AT + 4], "little"),
        int.from_bytes(timex.raw[_MAX_ERROR_AT : _MAX_ERROR_AT + 8], "little"),
    )


def judge_clock(status: int, error_us: int) -> Finding:
    """Judge the clock by ``status`` and ``maxerror`` (µs) of struct timex."""
    if status & _UNSYNCHRONIZED:
        return Finding(
            "warn",
            "Nothing on this host keeps the clock by NTP: certificates and tokens may look expired or not yet valid "
            "(chrony, systemd-timesyncd).",
        )
    return Finding("ok", f"The clock is kept by NTP, with an error of at most {error_us / 1e6:.3f} s.")
