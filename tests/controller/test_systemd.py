"""Goal: systemd hears READY, STOPPING and the watchdog; nobody else is bothered."""

from __future__ import annotations

import os
import socket
from pathlib import Path

from sidecar.controller.systemd import Systemd


def test_notifies(short_dir: Path) -> None:
    path = str(short_dir / "notify")
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as heard:
        heard.bind(path)
        heard.settimeout(5)
        systemd = Systemd(
            {"NOTIFY_SOCKET": path, "WATCHDOG_USEC": "3000000", "WATCHDOG_PID": str(os.getpid())}
        )
        systemd.ready("Running")
        assert heard.recv(1024).startswith(b"READY=1\nSTATUS=Running\n")
        systemd.watchdog()
        assert heard.recv(1024) == b"WATCHDOG=1"
        systemd.stopping("Draining")
        assert heard.recv(1024) == b"STOPPING=1\nSTATUS=Draining"
    assert systemd.watchdog_interval_s == 1.5
    systemd.watchdog()  # systemd is gone: no error


def test_without_systemd() -> None:
    systemd = Systemd({})
    systemd.ready("Running")
    assert systemd.watchdog_interval_s is None
    assert Systemd({"WATCHDOG_USEC": "5", "WATCHDOG_PID": "1"}).watchdog_interval_s is None
