"""Goal: green threads of gevent and eventlet send as other threads do, whatever is patched, and when.

Method: programs of their own against a real daemon before a broker in Python. Its log is compared with what they say.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from sidecar.tools.testing.daemon import SidecarDaemon
from sidecar.tools.testing.fake_broker import FakeBroker
from sidecar.tools.testing.ledger import Ledger, RecordId

# Without coverage in the children: its hooks are no part of what is tried here.
pytestmark = [pytest.mark.process, pytest.mark.unmeasured]

SCRIPT = Path(__file__).with_name("green_ways.py")
TOPIC, LATE_TOPIC, WAITING = "t", "late", "waiting"
PATCHES = [
    "gevent",
    "gevent late",
    "gevent unpatched",
    "gevent thread=False",
    "gevent select=False",
    "gevent socket=False",
    "eventlet",
    "eventlet late",
    "eventlet unpatched",
    "eventlet thread=False",
    "eventlet select=False",
]
"""What is patched, and when."""


@pytest.fixture
def broker() -> Iterator[FakeBroker]:
    with FakeBroker({TOPIC: 3}) as running:
        yield running


@pytest.fixture
def daemon(broker: FakeBroker) -> Iterator[SidecarDaemon]:
    with SidecarDaemon(broker.bootstrap_servers) as running:
        yield running


def check(broker: FakeBroker, ledger: Ledger, reports: list[tuple[str, int, list[int]]]) -> None:
    """Every record once, as it was reported."""
    for name, sent, delivered in reports:
        ledger.sent(name, sent)
        for number in delivered:
            ledger.delivered(RecordId(name, number))
    for partition in range(3):
        ledger.read_all(
            (RecordId.decode(record.value or b""), partition) for record in broker.records(TOPIC, partition)
        )
    assert not broker.bad_batches
    ledger.check()


@pytest.mark.parametrize("patch", PATCHES)
def test_green_threads_send_wait_and_fork(
    broker: FakeBroker, daemon: SidecarDaemon, ledger: Ledger, patch: str
) -> None:
    """While one waits for an outcome, for a flush or for partitions, the others of its thread run."""
    with subprocess.Popen(
        [sys.executable, "-X", "faulthandler", "-W", "ignore", str(SCRIPT), patch, str(daemon.run_dir)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as program:
        assert program.stdout is not None and program.stderr is not None
        assert program.stdout.readline().strip() == WAITING, program.stderr.read()
        broker.create_topic(LATE_TOPIC)
        broker.create_topic(f"{LATE_TOPIC}-2")
        rest, errors = program.communicate(timeout=240)
    assert program.returncode == 0, errors[-4000:]
    assert not errors, "nothing is logged"
    check(broker, ledger, [json.loads(line) for line in rest.splitlines()])


@pytest.mark.parametrize("patch", ["gevent", "eventlet"])
def test_asyncio_works_in_a_patched_process(
    broker: FakeBroker, daemon: SidecarDaemon, ledger: Ledger, patch: str
) -> None:
    program = f"""
import {patch}{".monkey" if patch == "gevent" else ""}
{"gevent.monkey.patch_all" if patch == "gevent" else "eventlet.monkey_patch"}()
import asyncio, sys
from client_stub import AsyncProducer

async def main():
    async with AsyncProducer(sys.argv[1], connect_timeout_ms=60_000) as producer:
        futures = [await producer.send("t", f"async/{{number}}|".encode()) for number in range(100)]
        assert len([await each for each in futures]) == 100
        assert len(await producer.partitions_for("t", 60)) == 3
        assert await producer.flush(60) == 0

asyncio.run(main())
"""
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", program, str(daemon.run_dir)],
        capture_output=True,
        text=True,
        check=False,
        timeout=240,
    )
    assert done.returncode == 0 and not done.stderr, done.stderr
    check(broker, ledger, [("async", 100, list(range(100)))])
