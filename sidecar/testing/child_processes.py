"""Children that do not outlive the process that started them, even when that one is killed."""

from __future__ import annotations

import ctypes
import signal

_PR_SET_PDEATHSIG = 1
_libc = ctypes.CDLL(None, use_errno=True)


def die_with_parent() -> None:
    """For ``Popen(preexec_fn=...)``: the kernel kills the child when the *thread* that started it ends.

    So start such children from the main thread. One prctl call, no allocation, no lock: safe between fork and
    exec even with other threads around.
    """
    _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
