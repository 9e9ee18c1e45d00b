"""Terminal: whether the terminal that this process was started from was closed, which SIGHUP alone does not prove."""

from __future__ import annotations

import os
import signal


class Terminal:
    """Made at the start of the process. The kernel detaches a closed terminal from the whole session, so /dev/tty
    shows it.
    """

    def __init__(self) -> None:
        # nohup ignores the signal: such a daemon should outlive its terminal.
        self._is_ours = signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN and _is_there()

    @property
    def is_closed(self) -> bool:
        """Whether there was a terminal that is gone now."""
        return self._is_ours and not _is_there()


def _is_there() -> bool:
    try:
        fd = os.open("/dev/tty", os.O_RDWR | os.O_NOCTTY | os.O_CLOEXEC)
    except OSError:
        return False
    os.close(fd)
    return True
