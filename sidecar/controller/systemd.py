"""sd_notify: what systemd (Type=notify, WatchdogSec) wants to hear. Does nothing elsewhere."""

from __future__ import annotations

import os
import socket
from collections.abc import Mapping


class Systemd:
    """Sends to NOTIFY_SOCKET; never raises, never blocks. One per process."""

    def __init__(self, environment: Mapping[str, str] | None = None) -> None:
        environment = os.environ if environment is None else environment
        address = environment.get("NOTIFY_SOCKET", "")
        self._address = "\0" + address[1:] if address.startswith("@") else address
        watchdog_pid = environment.get("WATCHDOG_PID")
        is_ours = watchdog_pid in (None, "", str(os.getpid()))
        micros = environment.get("WATCHDOG_USEC", "")
        self.watchdog_interval_s: float | None = int(micros) / 2e6 if micros.isdigit() and is_ours else None
        """Send ``watchdog()`` this often (half of what systemd allows); None: not asked for."""

    def ready(self, text: str) -> None:
        self._send(f"READY=1\nSTATUS={text}\nMAINPID={os.getpid()}")

    def status(self, text: str) -> None:
        self._send(f"STATUS={text}")

    def stopping(self, text: str) -> None:
        self._send(f"STOPPING=1\nSTATUS={text}")

    def watchdog(self) -> None:
        self._send("WATCHDOG=1")

    def _send(self, message: str) -> None:
        if not self._address:
            return
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as notify:
                notify.setblocking(False)
                notify.sendto(message.encode(), self._address)
        except OSError:
            return
