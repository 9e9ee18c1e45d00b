"""AC-08: the wall clock of daemon and client steps by an hour while records wait in every way there is.

Both run with a shim (clock_shim.c, preloaded) under which their wall clock is what the test says. That it reaches
them is shown by what they do use it for: timestamps of records, and the time written beside a batch that was sent.
"""

from __future__ import annotations

import os
import struct
import subprocess
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from sidecar.shm.descriptor_states import DescriptorState
from sidecar.shm.descriptors import DescriptorTable
from sidecar.shm.segment import Segment
from sidecar.tools.testing.daemon import SidecarDaemon, cli
from sidecar.tools.testing.fake_broker import FakeBroker
from sidecar.tools.testing.fault_rules import ALWAYS, on
from sidecar.tools.testing.kafka_frames import Api
from sidecar.tools.testing.metrics import metric
from sidecar.tools.testing.waiting import wait_until

from .harness import FAST, METRIC, OUTCOME_S, Harness, pool_is_whole

pytestmark = [pytest.mark.process]

LEADER_NOT_AVAILABLE = 5
LINGER_MS = 2_000
HOUR_S = 3_600
MINUTE_MS = 60_000
SETTINGS = {'topics."linger-*".linger.ms': LINGER_MS, "retry.backoff.max.ms": 300}


class ShiftedClock:
    """The wall clock of every process that is started with ``environment``: the real one plus a shift."""

    def __init__(self, folder: Path) -> None:
        shim = folder / "clock_shim.so"
        source = Path(__file__).with_name("clock_shim.c")
        subprocess.run(["cc", "-O1", "-shared", "-fPIC", "-o", shim, source, "-ldl"], check=True)
        self._file = folder / "shift"
        self.set(0)
        self.environment: Mapping[str, str] = {
            **os.environ,
            "LD_PRELOAD": str(shim),
            "CLOCK_SHIM_FILE": str(self._file),
        }

    def set(self, shift_s: int) -> None:
        with self._file.open("r+b" if self._file.exists() else "wb") as file:
            file.write(struct.pack("=q", shift_s))


class Client:
    """``kafka-sidecar produce TOPIC -``: sends each line as it comes."""

    def __init__(self, daemon: SidecarDaemon, topic: str, environment: Mapping[str, str]) -> None:
        self.process = subprocess.Popen(
            [*cli("produce"), "--run-dir", str(daemon.run_dir), topic, "-"],
            stdin=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=dict(environment),
        )

    def say(self, line: bytes) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(line + b"\n")
        self.process.stdin.flush()

    def finish(self) -> str:
        _, said = self.process.communicate(timeout=OUTCOME_S)
        assert self.process.returncode == 0, said
        return said.decode()


@pytest.fixture(scope="module")
def clock(tmp_path_factory: pytest.TempPathFactory) -> ShiftedClock:
    return ShiftedClock(tmp_path_factory.mktemp("clock"))


@pytest.fixture(scope="module")
def harness(clock: ShiftedClock) -> Iterator[Harness]:
    with (
        FakeBroker(nodes=2) as kafka,
        SidecarDaemon(
            kafka.bootstrap_servers, settings={**FAST, **SETTINGS}, environment=clock.environment
        ) as daemon,
    ):
        made = Harness(kafka, daemon)
        yield made
        clock.set(0)
        kafka.clear_rules()
        with made.sender(made.new_topic()) as probe:
            pool_is_whole(daemon, probe)


def published_ms(daemon: SidecarDaemon) -> list[int]:
    """The wall clock's time that the only worker wrote beside each batch it has sent and not seen answered."""
    segment = Segment.attach(Path(daemon.info()["segment"]))
    try:
        (slot,) = segment.prepared_slots()
        table = DescriptorTable(segment, slot)
        return [each.published_ms for each in table if each.state == DescriptorState.SENT_UNDER]
    finally:
        segment.close()


@pytest.mark.parametrize("step_s", [HOUR_S, -HOUR_S], ids=["forward", "back"])
def test_ac_08_the_wall_clock_steps(harness: Harness, clock: ShiftedClock, step_s: int) -> None:
    """AC-08: records linger, wait for a retry, an answer, a leader, a topic, while the clock steps by an hour. None
    expires, nothing is stuck, linger ends when it should, the worker lives on."""
    clock.set(0)
    kafka, daemon = harness.kafka, harness.daemon
    sign = "forward" if step_s > 0 else "back"
    lingering = f"linger-{sign}"
    kafka.create_topic(lingering)
    refused, held, bystander = (harness.new_topic() for _ in range(3))
    for topic in (held, bystander):
        kafka.move_leader(topic, 0, 2)
    leaderless = harness.new_topic()
    kafka.move_leader(leaderless, 0, -1)
    missing = f"missing-{sign}"
    workers = daemon.worker_pids()
    client = Client(daemon, bystander, clock.environment)
    senders = {name: harness.sender(name) for name in (lingering, refused, held, leaderless, missing)}
    refusing = kafka.add(on(Api.PRODUCE, topic=refused, times=ALWAYS).refuse(LEADER_NOT_AVAILABLE))
    holding = kafka.add(on(Api.PRODUCE, topic=held).hold_answer())
    senders[lingering].send()
    senders[lingering].outcomes()
    client.say(b"before the step")
    wait_until(lambda: len(kafka.records(bystander)) == 1, "the client's first record")
    sent_s = time.monotonic()
    for sender in senders.values():
        sender.send()
    refusing.wait(2)
    holding.wait()
    before_ms = max(published_ms(daemon))

    clock.set(step_s)
    client.say(b"after the step")
    assert senders[lingering].outcomes()[-1].error is None
    assert time.monotonic() - sent_s >= LINGER_MS / 1_000
    refusing.wait(refusing.hits + 3)  # it is still tried, at the pace of its backoff
    assert not any(senders[name].deliveries[-1].done() for name in (refused, held, leaderless, missing))

    # The step has reached client and worker, whose batch has no answer yet: it stands behind the one that is held.
    wait_until(lambda: len(kafka.records(bystander)) == 2, "the client's second record")
    first, second = (record.timestamp_ms for record in kafka.records(bystander))
    assert abs(second - first - step_s * 1_000) < MINUTE_MS
    assert any(abs(ms - before_ms - step_s * 1_000) < MINUTE_MS for ms in published_ms(daemon))

    refusing.remove()
    holding.release()
    kafka.move_leader(leaderless, 0, 1)
    kafka.create_topic(missing)
    client.say(b"at the end")
    assert "3 records delivered" in client.finish()
    for sender in senders.values():
        assert all(outcome.error is None for outcome in sender.outcomes())
    harness.balance(*senders.values())
    for sender in senders.values():
        sender.producer.close(OUTCOME_S)
    assert metric(daemon, f"{METRIC}batches_expired_total") == 0
    assert daemon.worker_pids() == workers, daemon.log_tail()
