"""sd_notify: the messages for systemd (Type=notify, WatchdogSec). Does nothing elsewhere.

``main`` and the Daemon call it, in the controller.
"""

from __future__ import annotations

import os
import select
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
        """How often to call ``watchdog()``, in seconds (half of systemd's limit); None if it is not requested."""

    def ready(self, text: str) -> None:
        self._send(f"READY=1\nSTATUS={text}\nMAINPID={os.getpid()}")

    def status(self, text: str) -> None:
        self._send(f"STATUS={text}")

    def stopping(self, text: str) -> None:
        self._send(f"STOPPING=1\nSTATUS={text}")

    def take_main_process(self, timeout_s: float = 5.0) -> None:
        """Become the unit's main process before the present one ends. Returns when systemd has read the message
        (BARRIER).

        Blocks at most ``timeout_s``.
        """
        self._send(f"MAINPID={os.getpid()}\nSTATUS=Taking over")
        if not self._address:
            return
        read_end, write_end = os.pipe2(os.O_CLOEXEC)
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as notify:
                notify.connect(self._address)
                socket.send_fds(notify, [b"BARRIER=1"], [write_end])
            os.close(write_end)
            write_end = -1
            # systemd closes its copy of our end once it has read everything before it.
            poller = select.poll()
            poller.register(read_end, select.POLLHUP)
            poller.poll(timeout_s * 1000)
        except OSError:
            return
        finally:
            os.close(read_end)
            if write_end >= 0:
                os.close(write_end)

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
