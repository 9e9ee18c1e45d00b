"""Goal: systemd hears READY, STOPPING and the watchdog; nobody else is bothered."""

from __future__ import annotations

import os
import socket
import threading
import time
from pathlib import Path

from sidecar.controller.systemd import Systemd
from tests.patience import PATIENCE_S


def test_notifies(short_dir: Path) -> None:
    path = str(short_dir / "notify")
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as heard:
        heard.bind(path)
        heard.settimeout(PATIENCE_S)
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


def test_the_next_daemon_becomes_the_main_process(short_dir: Path) -> None:
    """It waits until systemd has read it: systemd closes the descriptor that comes with BARRIER."""
    path = str(short_dir / "notify")
    heard: list[bytes] = []
    done_s: list[float] = []
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as notify:
        notify.bind(path)
        notify.settimeout(PATIENCE_S)
        systemd = Systemd({"NOTIFY_SOCKET": path})

        def take() -> None:
            systemd.take_main_process(timeout_s=60.0)
            done_s.append(time.monotonic())

        taking = threading.Thread(target=take)
        taking.start()
        heard.append(notify.recv(1024))
        message, descriptors, _, _ = socket.recv_fds(notify, 1024, 4)
        assert not done_s, "it waits"
        for descriptor in descriptors:
            os.close(descriptor)
        taking.join(30)
    assert done_s
    assert heard[0].startswith(f"MAINPID={os.getpid()}\n".encode())
    assert message == b"BARRIER=1"
    systemd.take_main_process()  # systemd is gone: no error, no waiting
    Systemd({}).take_main_process()


def test_without_systemd() -> None:
    systemd = Systemd({})
    systemd.ready("Running")
    assert systemd.watchdog_interval_s is None
    assert Systemd({"WATCHDOG_USEC": "5", "WATCHDOG_PID": "1"}).watchdog_interval_s is None
