"""The pool at its bounds: BP-03 (larger than the pool, exactly as large, no memory for the segment) and BP-08
(callers that wait for room when the daemon or their own producer goes away)."""

from __future__ import annotations

import subprocess
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from client_stub import errors
from sidecar.tools.testing.daemon import SidecarDaemon, StartDaemon
from sidecar.tools.testing.fake_broker import FakeBroker
from sidecar.tools.testing.fault_rules import ALWAYS, on
from sidecar.tools.testing.kafka_frames import Api
from sidecar.tools.testing.metrics import metric
from sidecar.tools.testing.waiting import wait_until

from .harness import FAST, METRIC, OUTCOME_S, Harness, Sender, accounts_balance

pytestmark = [pytest.mark.process]

PAGE_BYTES = 16_384
POOL_BYTES = 1 << 20
RECORD_BYTES_MAX = POOL_BYTES // 2 - PAGE_BYTES
"""The largest max.request.size for this pool: one topic may hold half of it."""
VALUE_BYTES_MAX = RECORD_BYTES_MAX - 87
"""Of a record without key and headers: what Kafka's producer adds for the batch and the record is taken off."""
MAX_BLOCK_MS = 600
SETTINGS = {"buffer.memory": POOL_BYTES, "max.request.size": RECORD_BYTES_MAX, "pool.page_bytes": PAGE_BYTES}
GAUGES_S = 10.0


@pytest.fixture(scope="module")
def kafka() -> Iterator[FakeBroker]:
    with FakeBroker(nodes=2) as made:
        yield made


def pages_taken(daemon: SidecarDaemon) -> float:
    return metric(daemon, f"{METRIC}buffer_pages_taken")


def wait_for_pages(daemon: SidecarDaemon, pages: float) -> None:
    wait_until(lambda: pages_taken(daemon) == pages, f"{pages} pages to be taken", timeout_s=GAUGES_S)


def test_bp_03_larger_than_the_pool(harness: Harness) -> None:
    """BP-03: a record larger than the whole pool, or by one byte larger than a record may be, is refused at once. So
    it is when the pool is full; nothing of it is taken."""
    topic, sender = harness.primed()
    with sender:
        held = harness.kafka.add(on(Api.PRODUCE, topic=topic, times=ALWAYS).hold_answer())
        sender.send(size=VALUE_BYTES_MAX)
        wait_until(lambda: pages_taken(harness.daemon) > 0, "the pool to be in use", timeout_s=GAUGES_S)
        before = pages_taken(harness.daemon)
        began = time.monotonic()
        for size in (VALUE_BYTES_MAX + 1, POOL_BYTES, POOL_BYTES + 1, 3 * POOL_BYTES):
            with pytest.raises(
                errors.RecordTooLarge, match=rf"larger than {RECORD_BYTES_MAX}.*max\.request\.size"
            ):
                sender.producer.send(topic, bytes(size))
        assert time.monotonic() - began < sender.producer._engine.max_block_ms / 1_000 / 2, (
            "nobody waited for room"
        )
        assert pages_taken(harness.daemon) == before
        held.remove()
        assert sender.offsets() == [0, 1]
        harness.balance(sender)


def test_bp_03_exact_fit(harness: Harness) -> None:
    """BP-03: two topics with a record of exactly half the pool each: both are taken at once, a third must wait; all is
    given back. One byte less of pool is no configuration."""
    senders = [harness.primed()[1] for _ in range(3)]
    # A topic keeps its last, partly written page until it has been idle for a second.
    wait_for_pages(harness.daemon, 0)
    held = harness.kafka.add(on(Api.PRODUCE, times=ALWAYS).hold_answer())
    first, second, third = senders
    for sender in (first, second):
        sender.send(size=VALUE_BYTES_MAX)
    wait_until(lambda: pages_taken(harness.daemon) > 60, "two halves of the pool", timeout_s=GAUGES_S)
    accepted = metric(harness.daemon, f"{METRIC}records_accepted_total")
    holds = metric(harness.daemon, f"{METRIC}holds_total")
    third.send(size=VALUE_BYTES_MAX)
    wait_until(
        lambda: metric(harness.daemon, f"{METRIC}holds_total") > holds,
        "the third to be held",
        timeout_s=GAUGES_S,
    )
    assert metric(harness.daemon, f"{METRIC}records_accepted_total") == accepted
    assert pages_taken(harness.daemon) <= POOL_BYTES // PAGE_BYTES
    held.remove()
    for sender in senders:
        assert sender.offsets() == [0, 1]
    harness.balance(*senders)
    for sender in senders:
        sender.producer.close(OUTCOME_S)
    wait_for_pages(harness.daemon, 0)


def test_bp_03_a_pool_without_room_for_one_record(kafka: FakeBroker, start_daemon: StartDaemon) -> None:
    """BP-03: the rule that makes an exact fit the worst there is: the start is refused with the numbers."""
    daemon = start_daemon(
        kafka.bootstrap_servers, settings={**SETTINGS, "max.request.size": RECORD_BYTES_MAX + 1}, wait=False
    )
    assert daemon.process is not None
    assert daemon.process.wait(20) != 0
    assert f"it must be at least {POOL_BYTES + 2}" in daemon.log_tail()


def in_a_small_file_system(folder: Path, size: str) -> list[str]:
    """Words before a command that give it, and nobody else, a tmpfs of that size at ``folder``."""
    mount = f"mount -t tmpfs -o size={size} tmpfs {folder} && exec " + '"$@"'
    words = ["unshare", "--user", "--map-root-user", "--mount", "sh", "-c", mount, "sh"]
    if subprocess.run([*words, "true"], capture_output=True, check=False).returncode != 0:
        pytest.skip("needs a host that lets unprivileged processes mount a tmpfs")
    return words


@pytest.mark.parametrize(
    ("size", "words"),
    [("600k", "cannot be made: "), ("1200k", "Worker 0 cannot be started: ")],
    ids=["pages", "slot"],
)
def test_bp_03_the_segment_cannot_be_made(
    kafka: FakeBroker, start_daemon: StartDaemon, tmp_path: Path, size: str, words: str
) -> None:
    """BP-03: no memory for the pool, or for a worker's tables: a sentence with the remedy, no file left; on the same
    run dir it works once there is room."""
    folder = tmp_path / "pool"
    folder.mkdir()
    settings = {**FAST, **SETTINGS, "pool.path": str(folder / "segment")}
    daemon = start_daemon(
        kafka.bootstrap_servers, settings=settings, prefix=in_a_small_file_system(folder, size), wait=False
    )
    assert daemon.process is not None
    assert daemon.process.wait(20) == 1
    log = daemon.log_tail()
    assert words in log
    assert "cannot be allocated: No space left on device. Lower buffer.memory" in log
    assert "Traceback" not in log
    if words.startswith("cannot be made"):
        return
    roomy = start_daemon(
        kafka.bootstrap_servers,
        settings=settings,
        prefix=in_a_small_file_system(folder, "64m"),
        run_dir=daemon.run_dir,
    )
    kafka.create_topic(f"room-{size}")
    with Sender(roomy, f"room-{size}") as sender:
        sender.send()
        assert sender.offsets() == [0]


@pytest.mark.alone  # without coverage, which writes larger files
def test_bp_03_the_segment_cannot_be_made_larger_than_a_file_may_be(
    kafka: FakeBroker, start_daemon: StartDaemon
) -> None:
    """BP-03: the same under ``ulimit -f``."""
    daemon = start_daemon(
        kafka.bootstrap_servers,
        settings=SETTINGS,
        prefix=["sh", "-c", 'ulimit -f 100; exec "$@"', "sh"],
        wait=False,
    )
    assert daemon.process is not None
    assert daemon.process.wait(20) == 1
    assert "cannot be made: " in daemon.log_tail()
    assert "Traceback" not in daemon.log_tail()


def test_bp_03_the_segment_cannot_grow(kafka: FakeBroker, start_daemon: StartDaemon, tmp_path: Path) -> None:
    """BP-03: memory is gone when another client comes. It hears so and keeps trying, and those there go on. With room
    again it works, and the books are as they were."""
    folder = tmp_path / "pool"
    folder.mkdir()
    daemon = start_daemon(
        kafka.bootstrap_servers,
        settings={**FAST, **SETTINGS, "pool.path": str(folder / "segment")},
        prefix=in_a_small_file_system(folder, "16m"),
    )
    assert daemon.process is not None
    inside = Path(f"/proc/{daemon.process.pid}/root{folder}")
    kafka.create_topic("grown")
    with Sender(daemon, "grown") as first, Sender(daemon, "grown") as late:
        first.send()
        first.outcomes()
        wait_for_pages(daemon, 0)
        with (
            (inside / "ballast").open("wb", buffering=0) as ballast,
            pytest.raises(OSError, match="No space left"),
        ):
            while True:
                ballast.write(bytes(PAGE_BYTES))
        late.producer._engine.outbox.connect_timeout_ms = MAX_BLOCK_MS
        with pytest.raises(
            errors.DaemonUnreachable, match=r"no room for another client: .* cannot be allocated"
        ):
            late.producer.send("grown", b"not yet")
        first.send(size=100_000)
        assert all(outcome.error is None for outcome in first.outcomes())
        (inside / "ballast").unlink()
        late.producer._engine.outbox.connect_timeout_ms = 20_000
        late.send()
        assert late.offsets() == [2]
        accounts_balance(daemon)
    wait_for_pages(daemon, 0)
    assert "Traceback" not in daemon.log_tail(1_000)


WAITING_RECORDS, WAITING_BYTES = 70, 200_000
"""More than a producer holds back by itself (8 MiB) and the daemon's pool."""


class Waiting:
    """A thread that sends large records until one of its calls has to wait for room."""

    def __init__(self, sender: Sender) -> None:
        self.sender = sender
        self.error: errors.SidecarError | None = None
        self.began_s = time.monotonic()
        """When the call that it is in began."""
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            for _ in range(WAITING_RECORDS):
                self.began_s = time.monotonic()
                self.sender.send(size=WAITING_BYTES)
        except errors.SidecarError as error:
            self.error = error

    def is_blocked(self) -> bool:
        return self._thread.is_alive() and time.monotonic() - self.began_s > 0.5

    def end(self) -> None:
        self._thread.join(OUTCOME_S)
        assert not self._thread.is_alive()


def test_bp_08_a_producer_is_closed_under_callers_that_wait(harness: Harness) -> None:
    """BP-08: its callers that wait for room get the error at once, later sends are refused, other producers' go on."""
    topic, sender = harness.primed()
    other_topic = harness.new_topic()
    held = harness.kafka.add(on(Api.PRODUCE, topic=topic, times=ALWAYS).hold_answer())
    waiting = Waiting(sender)
    wait_until(waiting.is_blocked, "a call that waits for room")
    sender.producer.close(0)
    waiting.end()
    assert isinstance(waiting.error, errors.ProducerClosed)
    with pytest.raises(errors.ProducerClosed):
        sender.send()
    held.remove()
    with harness.sender(other_topic) as other:
        other.send()
        assert other.offsets() == [0]
        harness.balance(sender, other)


def test_bp_08_the_daemon_stops_under_callers_that_wait(kafka: FakeBroker, start_daemon: StartDaemon) -> None:
    """BP-08: accepted records have their outcomes. Calls that wait for room wait on, each for its own max.block.ms.
    The next daemon takes their records, and a caller without patience for it hears that the daemon is away."""
    daemon = start_daemon(
        kafka.bootstrap_servers,
        settings={**FAST, **SETTINGS, "buffer.memory": 4 << 20, "daemon.shutdown_timeout_s": 1},
    )
    topics = ["stopped-1", "stopped-2", "stopped-3"]
    for topic in topics:
        kafka.create_topic(topic)
    held = kafka.add(on(Api.PRODUCE, times=ALWAYS).hold_answer())
    senders = [Sender(daemon, topic, max_block_ms=60_000) for topic in topics[:2]]
    senders.append(Sender(daemon, topics[2], max_block_ms=4_000))
    calls = [Waiting(sender) for sender in senders]
    for call in calls:
        wait_until(call.is_blocked, "calls that wait for room")
    assert daemon.stop() == 1, "records failed to their senders"
    calls[2].end()
    assert isinstance(calls[2].error, errors.DaemonUnreachable | errors.BufferExhausted)
    assert all(call.is_blocked() for call in calls[:2])
    first = [sender.deliveries[0] for sender in senders]
    wait_until(lambda: any(delivery.done() for delivery in first), "what was accepted to be told")
    told = [delivery.exception(0) for delivery in first if delivery.done()]
    assert {type(error) for error in told} == {errors.DeliveryAborted}
    held.remove()
    daemon.start()
    for call in calls[:2]:
        call.end()
        assert call.error is None
    for sender in senders:
        assert sender.outcomes()[-1].error is None
        sender.producer.close(OUTCOME_S)
    accounts_balance(daemon)
    wait_for_pages(daemon, 0)
    assert metric(daemon, f"{METRIC}buffer_waiters") == 0
