"""Faults of clients, and of the daemon as clients see it: CL-01, CL-03, CL-04, CL-06, CL-07."""

from __future__ import annotations

import os
import secrets
import signal
import subprocess
import sys
from collections.abc import Iterator

import pytest
import zmq

from client_stub.io.daemon_address import control_path
from sidecar.shm.client_table import ClientTable
from sidecar.shm.segment import Segment
from sidecar.tools.testing.fault_rules import ALWAYS, on
from sidecar.tools.testing.kafka_frames import Api
from sidecar.tools.testing.ledger import Ledger, RecordId
from sidecar.tools.testing.metrics import metric
from sidecar.tools.testing.waiting import wait_until

from .harness import METRIC, Harness, accounts_balance

pytestmark = [pytest.mark.process]

SETTINGS = {"max.block.ms": 20_000, "daemon.client_grace_s": 3_600}
RECORDS = 1_000
LEADER_NOT_AVAILABLE = 5

CLIENT = """
import os, signal, sys
from client_stub import Producer
from sidecar.tools.testing.ledger import RecordId
run_dir, topic, name, count = sys.argv[1:5]
producer = Producer(run_dir=run_dir, client_name=name)
for number in range(int(count)):
    producer.send(topic, RecordId(name, number).encode())
producer.flush(timeout=30, until="accepted")
child = os.fork() if "forks" in sys.argv else -1
if child != 0:
    print("sent", child, flush=True)
signal.pause()
"""


def counted(harness: Harness, name: str) -> float:
    return metric(harness.daemon, f"{METRIC}{name}_total")


def start_client(harness: Harness, topic: str, name: str, records: int = RECORDS) -> subprocess.Popen[bytes]:
    """A client process whose records are accepted, and which waits to be killed."""
    words = [sys.executable, "-c", CLIENT, str(harness.daemon.run_dir), topic, name, str(records)]
    client = subprocess.Popen(words, stdout=subprocess.PIPE)
    assert client.stdout is not None
    assert client.stdout.readline() == b"sent -1\n"
    return client


def rows_of(harness: Harness, pid: int) -> int:
    """Rows of the client table that belong to a process."""
    segment = Segment.attach(harness.daemon.info()["segment"])
    try:
        return sum(row.pid == pid for row in ClientTable(segment).rows())
    finally:
        segment.close()


def enter_killed(ledger: Ledger, harness: Harness, topic: str, name: str, records: int = RECORDS) -> None:
    """All of a killed client's records were accepted: they must be there as if it had been told so."""
    ledger.sent(name, records)
    ledger.delivered_up_to(name, records)
    for record in harness.kafka.records(topic):
        found = RecordId.decode(record.value or b"")
        if found.producer == name:
            ledger.read(found, record.partition)


@pytest.fixture
def raw(harness: Harness) -> Iterator[zmq.Socket[bytes]]:
    context = zmq.Context()
    socket = context.socket(zmq.DEALER)
    socket.setsockopt(zmq.LINGER, 1_000)
    socket.connect(f"ipc://{control_path(str(harness.daemon.run_dir))}")
    yield socket
    socket.close()
    context.term()


def test_cl_01_nonsense_at_the_control_endpoint(harness: Harness, raw: zmq.Socket[bytes]) -> None:
    """CL-01: garbage and a far too large message, while a client sends: it notices nothing of it."""
    _, sender = harness.primed()
    with sender:
        raw.send(secrets.token_bytes(300))
        raw.send_multipart([b"", b"\xc1" * 7])
        raw.send(b"\x00" * (8 << 20))
        for _ in range(20):
            sender.send()
        assert len(sender.offsets()) == 21
        assert harness.daemon.status()["takes_records"]
    harness.balance(sender)


def test_cl_03_a_killed_clients_accepted_records(harness: Harness) -> None:
    """CL-03: killed with 1,000 records accepted and none acknowledged: delivered once, its row free, others go on."""
    topic, bystander = harness.primed()
    with bystander:
        refused = harness.kafka.add(on(Api.PRODUCE, topic=topic, times=ALWAYS).refuse(LEADER_NOT_AVAILABLE))
        before = counted(harness, "records_accepted")
        client = start_client(harness, topic, "cl-03")
        wait_until(lambda: counted(harness, "records_accepted") - before >= RECORDS, "all to be accepted")
        assert rows_of(harness, client.pid) == 1
        client.kill()
        client.wait()
        other_topic = harness.new_topic()
        with harness.sender(other_topic) as other:
            other.send()
            assert other.offsets() == [0]
            refused.remove()
            wait_until(lambda: len(harness.kafka.records(topic)) == RECORDS + 1, "what it had accepted")
            wait_until(lambda: rows_of(harness, client.pid) == 0, "its row to be free", timeout_s=15)
            harness.balance(other)
    ledger = Ledger()
    enter_killed(ledger, harness, topic, "cl-03")
    ledger.check()


def test_cl_03_a_forked_child_holds_its_killed_parents_sockets(harness: Harness) -> None:
    """CL-03: no connection ends with the parent; its row is free all the same, long before its grace is over."""
    topic = harness.new_topic()
    words = [sys.executable, "-c", CLIENT, str(harness.daemon.run_dir), topic, "cl-03-parent", "10", "forks"]
    with subprocess.Popen(words, stdout=subprocess.PIPE) as parent:
        assert parent.stdout is not None
        child = int(parent.stdout.readline().split()[1])
        try:
            wait_until(lambda: len(harness.kafka.records(topic)) == 10, "its records")
            assert rows_of(harness, parent.pid) == 1
            parent.kill()
            wait_until(lambda: rows_of(harness, parent.pid) == 0, "its row to be free", timeout_s=15)
        finally:
            os.kill(child, signal.SIGKILL)
            parent.kill()


@pytest.mark.parametrize("whole", [False, True], ids=["worker", "daemon"])
def test_cl_04_killed_with_records_in_every_state(harness: Harness, whole: bool) -> None:
    """CL-04: accepted only, in flight unanswered, acknowledged and not told: one outcome each, all delivered once."""
    topic, sender = harness.primed(3)
    with sender:
        # Of partition 0 the broker has appended, and nobody hears of it; 1 is on its way; 2 waits behind.
        appended = harness.kafka.add(on(Api.PRODUCE, topic=topic, partition=0).hold_answer())
        for number in range(300):
            sender.send(number % 3)
        appended.wait()
        if whole:
            pids = [int(harness.daemon.info()["pid"]), *harness.daemon.worker_pids()]
            harness.daemon.kill()
            for pid in pids[1:]:
                try:
                    os.kill(pid, signal.SIGKILL)
                except ProcessLookupError:
                    continue
            harness.kafka.clear_rules()
            harness.daemon.start()
        else:
            harness.kafka.clear_rules()
            harness.replace_worker()
        assert len(sender.offsets()) == 303
    harness.balance(sender)


def test_cl_06_a_stub_that_stops_reading(harness: Harness) -> None:
    """CL-06: a stopped client with outcomes to hear: others are served at once; woken, it hears them all."""
    topic = harness.new_topic()
    client = start_client(harness, topic, "cl-06")
    try:
        client.send_signal(signal.SIGSTOP)
        with harness.sender(harness.new_topic()) as other:
            for _ in range(500):
                other.send()
            other.offsets()
            harness.balance(other)
    finally:
        client.send_signal(signal.SIGCONT)
        client.kill()
        client.wait()
    wait_until(lambda: len(harness.kafka.records(topic)) == RECORDS, "its records")
    accounts_balance(harness.daemon)


def test_cl_07_who_asked_for_the_metadata_goes_away(harness: Harness) -> None:
    """CL-07: the client whose record made the daemon ask for a topic is killed: others that wait for it get it."""
    asked = len(harness.kafka.requests(Api.METADATA))
    first = start_client(harness, "cl-07", "cl-07", 10)
    wait_until(lambda: len(harness.kafka.requests(Api.METADATA)) > asked, "the daemon to ask for the topic")
    with harness.sender("cl-07") as waiting:
        waiting.send()
        wait_until(lambda: counted(harness, "records_accepted") > 0, "a record to wait for its topic")
        first.kill()
        first.wait()
        harness.kafka.create_topic("cl-07", 1)
        assert waiting.outcomes()[0].error is None
    wait_until(
        lambda: len(harness.kafka.records("cl-07")) >= 11, "the killed client's records, at its own worker"
    )
    ledger = Ledger()
    enter_killed(ledger, harness, "cl-07", "cl-07", 10)
    ledger.check()
    accounts_balance(harness.daemon)
