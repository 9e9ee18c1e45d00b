"""Terminal: whether the one this process was started from has been closed. SIGHUP alone does not say so."""

from __future__ import annotations

import os
import signal


class Terminal:
    """Made at the start. The kernel takes a closed terminal away from the whole session, so /dev/tty tells."""

    def __init__(self) -> None:
        # nohup ignores the signal: such a daemon is to outlive its terminal.
        self._is_ours = signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN and _is_there()

    @property
    def is_closed(self) -> bool:
        """There was one, and it is gone."""
        return self._is_ours and not _is_there()


def _is_there() -> bool:
    try:
        fd = os.open("/dev/tty", os.O_RDWR | os.O_NOCTTY | os.O_CLOEXEC)
    except OSError:
        return False
    os.close(fd)
    return True
