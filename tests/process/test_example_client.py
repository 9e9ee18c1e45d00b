"""Goal: a client that was written from docs/protocol.md alone, with pyzmq, does what the page promises.

Method: examples/pyzmq_client.py at a real daemon and a fake broker: a full pool (HOLD, RESUME), a gap in its numbers
(RESEND), the death of its worker, and its command line.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from client_stub.contract.wire import Kind, OutcomeKind
from examples import pyzmq_client
from examples.pyzmq_client import Client
from sidecar.tools.testing.daemon import SidecarDaemon, StartDaemon
from sidecar.tools.testing.fake_broker import FakeBroker
from sidecar.tools.testing.waiting import wait_until
from tests.outcomes import unpack_outcomes
from tests.process.example_conversation import FixedSystem, Replayed, converse

pytestmark = pytest.mark.process

SOURCE = Path(pyzmq_client.__file__)
POOL_BYTES = 1 << 20
SETTINGS = {"buffer.memory": POOL_BYTES, "max.request.size": 400_000, "daemon.workers": 1}


@pytest.fixture
def kafka() -> Iterator[FakeBroker]:
    with FakeBroker({"orders": 1}) as kafka:
        yield kafka


class Heard(Client):
    """Notes the kinds of all messages."""

    def __init__(self, daemon: SidecarDaemon) -> None:
        self.kinds: list[int] = []
        super().__init__(str(daemon.run_dir), "pyzmq")

    def handle(self, frame: bytes, data: bytes = b"") -> bool:
        self.kinds.append(frame[1])
        return super().handle(frame, data)


def values(kafka: FakeBroker) -> list[bytes | None]:
    return [record.value for record in kafka.records("orders", 0)]


def flush(client: Client) -> None:
    def decided() -> bool:
        client.poll(50)
        return not any(each.undecided for each in client.streams.values())

    wait_until(decided, "the outcome of each record")


def test_the_example_is_short_and_knows_nothing_of_ours() -> None:
    text = SOURCE.read_text()
    assert sum(bool(line.strip()) for line in text.splitlines()) <= 150
    assert "client_stub" not in text and "sidecar" not in text


def test_the_recorded_conversation_is_the_same_byte_by_byte(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in ("os", "time"):
        monkeypatch.setattr(pyzmq_client, module, FixedSystem())
    client = Replayed()
    recorded = {kind: frames for _, kind, frames in client.played.left}
    converse(client)
    assert not client.failures
    outcomes = unpack_outcomes(recorded["OUTCOMES"][1])
    assert {outcome.kind for outcome in outcomes} == {OutcomeKind.DELIVERED}


def test_its_command_line_sends_each_line(kafka: FakeBroker, start_daemon: StartDaemon) -> None:
    daemon = start_daemon(kafka.bootstrap_servers, settings=SETTINGS)
    lines = [b"%d" % number for number in range(1_000)]
    command = [sys.executable, str(SOURCE), str(daemon.run_dir), "orders"]
    done = subprocess.run(command, input=b"\n".join(lines), capture_output=True, timeout=60, check=False)
    assert (done.returncode, done.stderr) == (0, b"")
    assert values(kafka) == lines


def test_a_full_pool_holds_the_example_until_there_is_memory(
    kafka: FakeBroker, start_daemon: StartDaemon
) -> None:
    daemon = start_daemon(kafka.bootstrap_servers, settings=SETTINGS)
    daemon.command("pause", "orders")
    client = Heard(daemon)
    sent = [b"%06d" % number + bytes(20_000) for number in range(3 * POOL_BYTES // 20_000)]
    for value in sent:
        client.send("orders", value)

    def is_held() -> bool:
        client.poll(50)
        return Kind.HOLD in client.kinds

    wait_until(is_held, "HOLD")
    daemon.command("resume", "orders")
    flush(client)
    client.close()
    assert Kind.RESUME in client.kinds
    assert values(kafka) == sent and not client.failures


def test_a_gap_is_sent_again(kafka: FakeBroker, start_daemon: StartDaemon) -> None:
    client = Heard(start_daemon(kafka.bootstrap_servers, settings=SETTINGS))
    client.send("orders", b"1")
    client.streams["orders"].sent += 1  # as if the second one had been lost on its way
    client.streams["orders"].last += 1
    client.streams["orders"].waiting[2] = client.streams["orders"].waiting[1]
    client.streams["orders"].undecided.add(2)
    client.send("orders", b"3")
    flush(client)
    client.close()
    assert Kind.RESEND in client.kinds
    assert values(kafka) == [b"1", b"1", b"3"] and not client.failures


def test_the_death_of_a_worker_loses_and_doubles_nothing(
    kafka: FakeBroker, start_daemon: StartDaemon
) -> None:
    daemon = start_daemon(kafka.bootstrap_servers, settings=SETTINGS)
    client = Heard(daemon)
    sent = [b"%d" % number for number in range(3_000)]
    epochs = set()
    for number, value in enumerate(sent):
        client.send("orders", value)
        if number in {1_000, 2_000}:
            (worker,) = daemon.worker_pids()
            os.kill(worker, signal.SIGKILL)
            wait_until(lambda dead=worker: daemon.ready_pids() not in ([dead], []), "another worker")
        if number % 100 == 0:
            client.poll(0)
        epochs.add(client.epoch)
    flush(client)
    client.close()
    assert len(epochs | {client.epoch}) == 3
    assert values(kafka) == sent and not client.failures
