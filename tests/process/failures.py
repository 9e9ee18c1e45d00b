"""Twenty failures that an operator meets: how each is caused, and the signs that must show it."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from client_stub import Producer
from client_stub.errors import SidecarError
from sidecar.tools.testing.child_processes import dying_with_parent
from sidecar.tools.testing.daemon import SidecarDaemon
from sidecar.tools.testing.fake_broker import FakeBroker
from sidecar.tools.testing.fault_rules import ALWAYS, on
from sidecar.tools.testing.hostile_client import Attacker
from sidecar.tools.testing.kafka_frames import Api
from sidecar.tools.testing.metrics import http_get
from sidecar.tools.testing.waiting import wait_until

from .page_reader import PageReader, top_text

if TYPE_CHECKING:
    from tests.scenarios.test_clock import ShiftedClock

PREFIX = "kafka_sidecar_"
POOL_BYTES = 4 << 20
LEADER_NOT_AVAILABLE, NOT_ENOUGH_REPLICAS, TOPIC_AUTHORIZATION_FAILED = 5, 19, 29
DEAD_CLIENT = """
import sys
from client_stub import Producer
producer = Producer(sys.argv[1], client_name="dying")
producer.send("missing", b"x" * 50_000)
producer.flush(30, until="accepted")
print("accepted", flush=True)
sys.stdin.read()
"""


@dataclass
class Harness:
    """A daemon with one worker on two fake brokers; topic ``orders`` has a partition at each, topic ``bulk`` too."""

    kafka: FakeBroker
    daemon: SidecarDaemon
    closing: contextlib.ExitStack
    log_start: int = 0
    values_before: dict[str, float] = field(default_factory=dict)
    clock: ShiftedClock | None = None
    hosts: Path | None = None
    """The hosts file that only the daemon reads."""

    def producer(self, name: str = "web", **settings: Any) -> Producer:
        made = Producer(self.daemon.run_dir, client_name=name, on_error=lambda *_: None, **settings)
        self.closing.callback(made.close, 0)
        return made

    def begin(self, *failures: Failure) -> None:
        """The log counts from here on, and the metrics from what they are now."""
        self.log_start = self.daemon.log_path.stat().st_size
        metrics = http_get(self.daemon, "/metrics")
        for failure in failures:
            name, labels, _ = failure.metric
            self.values_before[failure.name] = value_of(metrics, name, labels) or 0.0

    def log(self) -> str:
        with self.daemon.log_path.open(errors="replace") as log:
            log.seek(self.log_start)
            return log.read()


def value_of(metrics: str, name: str, labels: str = "") -> float | None:
    """The one series; None when it is not there. ``labels`` is a pattern."""
    pattern = re.compile(rf"^{PREFIX}{name}(?:{{.*{labels}.*}})? (\S+)$", re.MULTILINE)
    found = pattern.search(metrics)
    return None if found is None else float(found.group(1))


@dataclass(frozen=True)
class Failure:
    """``cause`` makes it happen. ``status`` and ``log`` are patterns; ``page`` judges the page's data, ``metric`` is
    (name, pattern of labels, judge of the value); with ``rises`` the value must also be above that before. ``words`` is
    the pattern of what a reader sees on the page and, unless ``is_in_top`` says otherwise, in `top`."""

    name: str
    cause: Callable[[Harness], None]
    status: str
    page: Callable[[dict[str, Any]], bool]
    metric: tuple[str, str, Callable[[float], bool]]
    log: str
    words: str
    rises: bool = False
    is_in_top: bool = True


def broker(page: dict[str, Any], broker_id: int) -> dict[str, Any]:
    found: dict[str, Any] = next((each for each in page["brokers"] if each["id"] == broker_id), {"state": ""})
    return found


def errors(page: dict[str, Any]) -> set[str]:
    return {each["error"] for each in page["failures"]}


# ---- causes


def broker_down(harness: Harness) -> None:
    producer = harness.producer()
    producer.send("orders", b"before", partition=1).result(30)
    harness.kafka.stop_listening(2)
    harness.kafka.disconnect(2)
    producer.send("orders", b"x", partition=1)


def broker_hung(harness: Harness) -> None:
    producer = harness.producer()
    producer.send("orders", b"before", partition=1).result(30)
    harness.kafka.stop_reading(2)
    producer.send("orders", b"x", partition=1)


def leader_missing(harness: Harness) -> None:
    producer = harness.producer()
    producer.send("orders", b"before", partition=1).result(30)
    harness.kafka.move_leader("orders", 1, -1)
    producer.send("orders", b"x", partition=1)


def topic_forbidden(harness: Harness) -> None:
    harness.kafka.add(on(Api.PRODUCE, topic="orders", times=ALWAYS).refuse(TOPIC_AUTHORIZATION_FAILED))
    harness.producer().send("orders", b"x")


def topic_missing(harness: Harness) -> None:
    harness.producer().send("missing", b"x")


def record_too_large(harness: Harness) -> None:
    harness.kafka.message_bytes_max = 1_000
    harness.producer().send("bulk", b"x" * 5_000)


def fill(producer: Producer, *topics: str) -> None:
    """Send until the daemon holds the client and the stub takes no more."""
    with contextlib.suppress(SidecarError):
        while True:
            for topic in topics:
                producer.send_many(topic, [(None, b"x" * 1_000)] * 100)


def pool_full_by_topic(harness: Harness) -> None:
    harness.kafka.add(on(Api.PRODUCE, times=ALWAYS).refuse(LEADER_NOT_AVAILABLE))
    fill(harness.producer("one", max_block_ms=500), "orders")
    fill(harness.producer("two", max_block_ms=500), "orders")


def pool_full_by_client(harness: Harness) -> None:
    harness.kafka.add(on(Api.PRODUCE, times=ALWAYS).refuse(LEADER_NOT_AVAILABLE))
    # Of four topics none is near its own share, however many records the stub puts into a submission (1 MiB at most).
    fill(harness.producer("greedy", max_block_ms=500), "orders", "bulk", "clicks", "logs")


def slow_client(harness: Harness) -> None:
    """A client that sends and never reads its socket nor acknowledges an outcome."""
    attacker = Attacker(harness.daemon.run_dir, 1)
    link, epoch = attacker.attached()
    harness.closing.callback(link.close)
    record = b"\x94\xc0\xc4\x01x\xc0\xc0"
    with contextlib.suppress(OSError):  # the worker reads no more of a client that it holds
        for seq in range(1, 40_000):
            link.send(attacker.submit(epoch, seq=seq, topic="orders", flags=1), record)


def letters_disk_full(harness: Harness) -> None:
    """A client dies with a record that will fail. Its letter is larger than the disk, see ``on_a_small_disk``."""
    client = subprocess.Popen(
        dying_with_parent([sys.executable, "-c", DEAD_CLIENT, str(harness.daemon.run_dir)]),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    assert client.stdout is not None
    assert client.stdout.readline() == b"accepted\n"
    client.kill()
    client.communicate()


def worker_killed(harness: Harness) -> None:
    os.kill(harness.daemon.worker_pids()[0], signal.SIGKILL)


def worker_stopped(harness: Harness) -> None:
    os.kill(harness.daemon.worker_pids()[0], signal.SIGSTOP)


def kafka_away(harness: Harness) -> None:
    """The last broker goes, too."""
    producer = harness.producer()
    producer.send("orders", b"before", partition=0).result(30)
    harness.kafka.stop_listening(1)
    harness.kafka.disconnect()
    producer.send("orders", b"x", partition=0)


def quota(harness: Harness) -> None:
    harness.kafka.throttle_ms = 1_500
    harness.producer().send("bulk", b"x", partition=0)


def min_isr(harness: Harness) -> None:
    harness.kafka.add(on(Api.PRODUCE, topic="orders", times=ALWAYS).refuse(NOT_ENOUGH_REPLICAS))
    harness.producer().send("orders", b"x")


def daemon_replaced(harness: Harness) -> None:
    harness.daemon.spawn("--takeover")


# ---- the signs

BROKER_DOWN = Failure(
    "broker down",
    broker_down,
    r"degraded: Broker 2 .* has been down for",
    lambda page: page["state"] == "degraded" and broker(page, 2)["state"] == "down",
    ("broker_up", 'broker="2"', lambda value: value == 0),
    r"WARNING .*Broker 2 \(.*\) is down: .*1 record waits for it",
    r"Broker 2 .* has been down for",
)
BROKER_HUNG = Failure(
    "broker hung",
    broker_hung,
    r"degraded: Broker 2 .* has been silent for .*oldest held record .*orders-1\.",
    lambda page: page["state"] == "degraded" and page["oldest_held"]["reason"] == "broker 2 silent",
    ("broker_up", 'broker="2"', lambda value: value == 0),
    r"WARNING .*Broker 2 \(.*\) is silent: it has answered nothing for",
    r"Broker 2 .* has been silent for (?s:.)*ldest held record .*orders-1\b",
)
LEADER_MISSING = Failure(
    "leader missing",
    leader_missing,
    r"degraded: Oldest held record \d+ s, orders-1, no leader",
    lambda page: page["state"] == "degraded" and page["oldest_held"]["cause"] == "no_leader",
    ("oldest_held_record_seconds", 'cause="no_leader"', lambda value: value >= 5),
    r"WARNING .*Oldest held record \d+ s, orders-1, no leader",
    r"Oldest held record \d+ s, orders-1, no leader",
)
TOPIC_FORBIDDEN = Failure(
    "topic forbidden",
    topic_forbidden,
    r"failed    1 of topic orders: TOPIC_AUTHORIZATION_FAILED",
    lambda page: "TOPIC_AUTHORIZATION_FAILED" in errors(page),
    ("topic_records_failed_total", "TOPIC_AUTHORIZATION_FAILED", lambda value: value == 1),
    r"WARNING .*1 record of topic orders failed: TOPIC_AUTHORIZATION_FAILED.*Grant WRITE",
    r"orders\s+TOPIC_AUTHORIZATION_FAILED",
)
TOPIC_MISSING = Failure(
    "topic missing",
    topic_missing,
    r"note .*topic missing, not in the cluster's metadata.*Create the topic",
    lambda page: page["oldest_held"]["cause"] == "unknown_topic" and bool(page["notices"]),
    ("oldest_held_record_seconds", 'cause="unknown_topic"', lambda value: value >= 5),
    r"WARNING .*topic missing, not in the cluster's metadata.*Create the topic",
    r"topic missing, not in the cluster's metadata.*Create the topic",
)
RECORD_TOO_LARGE = Failure(
    "record too large",
    record_too_large,
    r"failed    1 of topic bulk: MESSAGE_TOO_LARGE",
    lambda page: "MESSAGE_TOO_LARGE" in errors(page),
    ("topic_records_failed_total", "MESSAGE_TOO_LARGE", lambda value: value == 1),
    r"WARNING .*1 record of topic bulk failed: MESSAGE_TOO_LARGE.*max\.message\.bytes",
    r"bulk\s+MESSAGE_TOO_LARGE",
)
POOL_FULL_BY_TOPIC = Failure(
    "pool full by topic",
    pool_full_by_topic,
    r"note .*pool \d+ %, topic orders at its share.*clients? (one|two).* waits?",
    lambda page: page["pool"]["by_topic"][0]["share_full"] and page["holds"][0]["reason"] == "share",
    ("streams_held", 'reason="share"', lambda value: value >= 1),
    r"WARNING .*Client (one|two) waits with records for topic orders",
    r"topic orders at its share.*clients? (one|two).* waits? for \d+ s.*buffer\.memory",
)
POOL_FULL_BY_CLIENT = Failure(
    "pool full by client",
    pool_full_by_client,
    r"note .*pool \d+ %, client greedy at its share.*client greedy waits",
    lambda page: page["pool"]["by_client"][0]["share_full"] and page["holds"][0]["client"] == "greedy",
    ("streams_held", 'reason="share"', lambda value: value >= 1),
    r"WARNING .*Client greedy waits with records for topic",
    r"client greedy at its share.*client greedy waits for \d+ s.*buffer\.memory",
)
SLOW_CLIENT = Failure(
    "slow client",
    slow_client,
    r"note .*client hostile-\d+ waits for \d+ s: it does not read its outcomes",
    lambda page: page["holds"][0]["reason"] == "ring",
    ("streams_held", 'reason="ring"', lambda value: value >= 1),
    r"WARNING .*Client hostile-\d+ waits .*it does not read its outcomes",
    r"[Cc]lient hostile-\d+ waits for \d+ s: it does not read its outcomes\. Look at that client",
)
DISK_FULL_FOR_LETTERS = Failure(
    "disk full for letters",
    letters_disk_full,
    r"note      dead letters of 1 submission wait .* spool .*/letters .*No space left on device.*room",
    lambda page: page["counters"]["dead_letters_waiting"] == 1,
    ("dead_letters_waiting", "", lambda value: value == 1),
    r"(?i)dead.letter.*No space left on device",
    r"spool .*/letters cannot be written .*No space left on device.*room",
)
WORKER_KILLED = Failure(
    "worker killed",
    worker_killed,
    r"restarts  1 of workers, .*: Worker 0 .* was killed by SIGKILL\.(?s:.)*worker 0 .*, restarts 1 \(killed 1\)",
    lambda page: "SIGKILL" in page["workers"][0]["last_death"] and page["workers"][0]["restarts"] == 1,
    ("worker_restarts_total", 'cause="killed",worker="0"', lambda value: value == 1),
    r"WARNING .*Worker 0 .* was killed by SIGKILL",
    r"Worker 0 .* was killed by SIGKILL\.",
)
WORKER_STOPPED = Failure(
    "worker stopped",
    worker_stopped,
    r"restarts  2 of workers, .*SIGKILL: it had been silent for (?s:.)*worker 0 .*, restarts 2 \(.*silent 1",
    lambda page: page["restarts"] == 2 and page["workers"][0]["restarts_by_cause"]["silent"] == 1,
    ("worker_restarts_total", 'cause="silent",worker="0"', lambda value: value == 1),
    r"ERROR .*Worker 0 .* was killed by SIGKILL: it had been silent for .* It is replaced",
    r"Worker 0 .* it had been silent for",
)
KAFKA_AWAY = Failure(
    "Kafka away",
    kafka_away,
    r"unreachable: .*(?s:.)*broker 1  down",
    lambda page: (
        page["accepts_records"] and not page["kafka_reachable"] and broker(page, 1)["state"] == "down"
    ),
    ("kafka_reachable", "", lambda value: value == 0),
    r"WARNING .*Kafka is not reachable",
    r"Kafka is not reachable",
)
QUOTA = Failure(
    "quota",
    quota,
    r"note .*throttles: 1,500 ms\..*quota",
    lambda page: max(each["throttle_ms"] for each in page["brokers"]) == 1_500,
    ("broker_throttle_seconds", 'broker="1"', lambda value: value == 1.5),
    r"WARNING .*throttles this daemon: it asked for 1500 ms",
    r"throttles: 1,500 ms\..*quota",
)
MIN_ISR = Failure(
    "min ISR",
    min_isr,
    r"degraded: Oldest held record \d+ s, orders-\d, broker \d refuses: NOT_ENOUGH_REPLICAS(?s:.)*min\.insync",
    lambda page: page["state"] == "degraded" and "NOT_ENOUGH_REPLICAS" in page["oldest_held"]["reason"],
    ("oldest_held_record_seconds", 'cause="refused"', lambda value: value >= 5),
    r"WARNING .*refuses: NOT_ENOUGH_REPLICAS.*min\.insync\.replicas",
    r"refuses: NOT_ENOUGH_REPLICAS(?s:.)*min\.insync",
)
DAEMON_REPLACED = Failure(
    "daemon replaced",
    daemon_replaced,
    r"before    The previous daemon \(pid \d+\) handed over",
    lambda page: page["predecessor"]["taken_over_pid"] is not None,
    ("start_time_seconds", "", lambda value: value > 0),
    r"Took over from pid \d+ in",
    r"The previous daemon \(pid \d+\) handed over",
    rises=True,
    is_in_top=False,
)


def shown(harness: Harness, failure: Failure, reader: PageReader) -> Iterator[str]:
    """Places that do not show it yet. Places that cost a process or a browser are asked once the others show it."""
    try:
        page = _json(http_get(harness.daemon, "/api/status"))
        metrics = http_get(harness.daemon, "/metrics")
    except OSError as error:
        yield f"page and metrics: {error}"
        return
    is_seen = True
    if not _holds(failure.page, page):
        keys = ("state", "brokers", "holds", "oldest_held", "failures", "notices", "last_restart")
        yield f"page: { {key: page.get(key) for key in keys} }"
        is_seen = False
    name, labels, judge = failure.metric
    value = value_of(metrics, name, labels)
    if value is None or not judge(value) or (failure.rises and value <= harness.values_before[failure.name]):
        yield f"metric: {name} = {value}"
        is_seen = False
    if not re.search(failure.log, harness.log(), re.MULTILINE):
        yield f"log:\n{harness.log()}"
        is_seen = False
    if is_seen:
        text = harness.daemon.command("status")
        if not re.search(failure.status, text.stdout + text.stderr):
            yield f"status:\n{text.stdout}{text.stderr}"
            return
        seen = {
            "page": reader.text(harness.daemon),
            "top": top_text(harness.daemon) if failure.is_in_top else None,
        }
        for place, words in seen.items():
            if words is not None and not re.search(failure.words, words):
                yield f"{place} as its reader sees it:\n{words}"


def wait_shown(
    harness: Harness, *failures: Failure, reader: PageReader, timeout_s: float
) -> dict[str, float]:
    """Until status, page, top, metrics and log show each of them; seconds that each took."""
    begun_s = time.monotonic()
    missing: dict[str, list[str]] = {}
    seen: dict[str, float] = {}

    def are_shown() -> bool:
        for failure in failures:
            if failure.name not in seen:
                missing[failure.name] = list(shown(harness, failure, reader))
                if not missing[failure.name]:
                    seen[failure.name] = time.monotonic() - begun_s
        return len(seen) == len(failures)

    wait_until(
        are_shown,
        f"{', '.join(each.name for each in failures)} in all places",
        timeout_s=timeout_s,
        interval_s=0.2,
        describe=lambda: "\n".join(text for texts in missing.values() for text in texts),
    )
    return seen


def _json(text: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(text)
    return found


def _holds(judge: Callable[[dict[str, Any]], bool], page: dict[str, Any]) -> bool:
    try:
        return judge(page)
    except (KeyError, IndexError, TypeError):
        return False
