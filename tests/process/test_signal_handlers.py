"""Goal: signal handlers, exceptions out of nowhere and forks at any moment neither hang the stub nor cost a record.

Method: a script of its own sends without pause while a timer interrupts it every millisecond. It says what it sent; the
scripted daemon says what arrived, and in which order.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.stub.conftest import daemon, run_dir
from tests.stub.fake_daemon import FakeDaemon

# Alone, which is without coverage: a measured process calls Python code from its fork hooks and between any two byte
# codes, and hangs when a handler raises there.
pytestmark = [pytest.mark.process, pytest.mark.alone]

__all__ = ["daemon", "run_dir"]

SCRIPT = Path(__file__).with_name("handler_ways.py")
SECONDS = 0.5
WAYS = [
    "handlers that send",
    "handlers that wait",
    "handlers that raise",
    "exceptions from another thread",
    "handlers that fork",
    "handlers that fork and return",
    "threads that fork",
]


@pytest.mark.parametrize("way", WAYS)
def test_interruptions_cost_no_record_and_hang_nobody(daemon: FakeDaemon, way: str) -> None:
    if way == "threads that fork":
        daemon.deliver = None
    done = subprocess.run(
        [sys.executable, "-X", "faulthandler", str(SCRIPT), way, str(daemon.run_dir), str(SECONDS)],
        capture_output=True,
        text=True,
        check=False,
        timeout=100,
    )
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr[-4000:]}"
    if way == "threads that fork":
        return
    arrived: dict[str, list[int]] = {}
    parent = daemon.received[0].client_id
    finished_by_children: dict[bytes, int] = {}
    for submit in daemon.received:
        for record in submit.records:
            name, number = bytes(record[1]).decode().split("-")
            if name == "main" and submit.client_id != parent:
                # A handler forked in the middle of the call: it goes on in both processes.
                finished_by_children[submit.client_id] = finished_by_children.get(submit.client_id, 0) + 1
            else:
                arrived.setdefault(name, []).append(int(number))
    assert all(count == 1 for count in finished_by_children.values())
    assert not finished_by_children or way == "handlers that fork and return"
    reports: dict[str, tuple[int, list[int]]] = json.loads(done.stdout)
    assert arrived.keys() <= reports.keys()
    for name, (sent, broken_off) in reports.items():
        numbers = arrived.get(name, [])
        assert numbers == sorted(set(numbers)), f"{name} is out of order or doubled"
        missing = set(range(sent)) - set(numbers)
        assert missing <= set(broken_off), f"{name}: {sorted(missing - set(broken_off))[:10]} never arrived"
