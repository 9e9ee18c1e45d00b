"""Children that do not outlive the process that started them, even if that is killed."""

from __future__ import annotations

import ctypes
import os
import signal
import sys
from collections.abc import Sequence
from typing import Final

_PR_SET_PDEATHSIG = 1
_libc = ctypes.CDLL(None, use_errno=True)
_DIE_AND_EXEC: Final = (
    "import ctypes, os, sys; "
    f"ctypes.CDLL(None).prctl({_PR_SET_PDEATHSIG}, {int(signal.SIGKILL)}, 0, 0, 0); "
    "os.getppid() == int(sys.argv[1]) or sys.exit(1); "
    "os.execvp(sys.argv[2], sys.argv[2:])"
)


def dying_with_parent(command: Sequence[str]) -> list[str]:
    """``command`` for Popen, killed by the kernel when the *thread* that starts it ends. Call from the main thread.

    A small Python requests that signal and then executes ``command`` under the same process id. A ``preexec_fn`` would
    run between fork and exec, in a copy of this process without its other threads. A lock that one of those held at
    the fork (a tracer's, another library's) is never released in the copy, and Popen would block for ever.
    """
    return [sys.executable, "-I", "-S", "-c", _DIE_AND_EXEC, str(os.getpid()), *command]


def die_with_parent() -> None:
    """In a running child: let the kernel kill it when the thread that started it ends."""
    _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
