"""Goal: /metrics, /healthz, the page and their errors, over real sockets and a real segment."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import socket
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from sidecar.common.wording import PLEASE_REPORT
from sidecar.shm.segment import Segment
from sidecar.telemetry.exporter import BACKLOG, CONNECTIONS_MAX, Exporter
from sidecar.telemetry.history import column_totals
from sidecar.telemetry.metric_table import METRICS
from sidecar.telemetry.page import duration
from tests.net.links import until
from tests.patience import PATIENCE_S

STATUS: dict[str, Any] = {
    "pid": 7,
    "version": "1.2.3",
    "instance": "abcdef0123456789",
    "state": "running",
    "takes_records": True,
    "accepts_records": True,
    "kafka_reachable": True,
    "sentence": "",
    "run_dir": "/run/<b>&amp;",
    "segment": "/dev/shm/x",
    "http": "127.0.0.1:1",
    "bootstrap": "localhost:9092",
    "cluster_id": None,
    "brokers": [
        {"id": 1, "state": "up", "in_flight": 2, "held_records": 7, "throttle_ms": 0},
        {"id": 2, "state": "silent", "in_flight": 5, "held_records": 30, "throttle_ms": 1500},
        {"id": 3, "state": "known", "in_flight": 0, "held_records": 0, "throttle_ms": 0},
    ],
    "batch_size": 16_384,
    "pool": {
        "pages": 64,
        "pages_used": 3,
        "page_bytes": 4096,
        "by_topic": [{"topic": "orders", "pages": 2, "share": 0.1, "share_full": False}],
        "by_client": [
            {"client": "w?b", "pages": 2, "share": 0.1, "share_full": False},
            {"client": "w?b", "pages": 1, "share": 0.1, "share_full": False},
        ],
    },
    "holds": [
        {"client": "<b>bulk", "reason": "share", "topic": "orders", "since_seconds": 3.0, "streams": 2},
        {"client": "web", "reason": "share", "topic": "orders", "since_seconds": 1.0, "streams": 1},
    ],
    "notices": [],
    "oldest_held": {"seconds": 37.0, "cause": "broker"},
    "certificates": [{"certificate": "Our certificate", "ends_seconds": 1_800_000_000.0}],
    "clock_steps": 1,
    "stalled_seconds": 7.5,
    "started_ms": 1_700_000_000_000,
    "restarts": 2,
    "refused": {"NOT_ADMITTED": 3},
    "held_slots": [4],
    "failures": [
        {
            "topic": "<i>orders",
            "error": "TOPIC_AUTHORIZATION_FAILED",
            "text": "Not authorized <script>.",
            "persistence": "not persisted",
            "records": 12,
            "client": "<u>web",
            "first_ms": 1_700_000_000_000,
            "last_ms": 1_700_000_000_000,
        }
    ],
    "workers": [
        {
            "index": 0,
            "state": "ready",
            "pid": 8,
            "slot": 0,
            "clients": 5,
            "cpu": None,
            "restarts": 2,
            "restarts_by_cause": {"killed": 2, "silent": 0},
            "last_death": "Worker 0 (pid 7) was killed by SIGKILL.",
        }
    ],
}

FAILURES = [(("orders", "TOPIC_AUTHORIZATION_FAILED"), 12.0)]


@pytest.fixture
def segment(tmp_path: Path) -> Iterator[Segment]:
    made = Segment.create(
        tmp_path / "segment", page_bytes=4096, buffer_memory_bytes=1 << 20, clients_max=16, instance_id=b"i"
    )
    for slot in (0, 1):
        made.prepare_slot(slot)
        made.slot(slot).claim(incarnation=slot + 1, pid=os.getpid())
        made.slot(slot).counters.inc("records_accepted_total", 10 + slot)
        made.slot(slot).counters.set("clients_connected", 3)
    yield made
    made.close()


def get(
    segment: Segment, requests: list[bytes], health: Callable[[], tuple[bool, str]] = lambda: (True, "")
) -> list[str]:
    """The whole answers to raw requests, each on a connection of its own."""

    async def run() -> list[str]:
        exporter = Exporter(socket.create_server(("127.0.0.1", 0), backlog=BACKLOG))
        exporter.attach(segment)
        exporter.start(health=health, status=lambda: dict(STATUS), failures=lambda: list(FAILURES))
        host, port = exporter.address.split(":")
        answers = []
        for request in requests:
            reader, writer = await asyncio.open_connection(host, int(port))
            writer.write(request)
            writer.write_eof()
            answers.append((await asyncio.wait_for(reader.read(), PATIENCE_S)).decode())
            writer.close()
        exporter.close()
        return answers

    return asyncio.run(run())


def request(path: str, method: str = "GET") -> bytes:
    return f"{method} {path} HTTP/1.1\r\nHost: x\r\n\r\n".encode()


def test_metrics(segment: Segment) -> None:
    (answer,) = get(segment, [request("/metrics")])
    head, body = answer.split("\r\n\r\n", 1)
    assert head.startswith("HTTP/1.1 200 OK")
    families = {family.name: family for family in text_string_to_metric_families(body)}
    accepted = families["kafka_sidecar_records_accepted"]
    assert [(sample.name, sample.labels["slot"], sample.value) for sample in accepted.samples] == [
        ("kafka_sidecar_records_accepted_total", "0", 10.0),
        ("kafka_sidecar_records_accepted_total", "1", 11.0),
    ]
    assert families["kafka_sidecar_up"].samples[0].value == 1.0
    refused = families["kafka_sidecar_control_refused"].samples[0]
    assert (refused.labels, refused.value) == ({"code": "NOT_ADMITTED"}, 3.0)
    assert families["kafka_sidecar_slots_held"].samples[0].value == 1.0
    (failed,) = families["kafka_sidecar_topic_records_failed"].samples
    assert (failed.labels, failed.value) == (
        {"topic": "orders", "error": "TOPIC_AUTHORIZATION_FAILED"},
        12.0,
    )
    assert {row.name.removesuffix("_total") for row in METRICS} == families.keys()


def test_a_dead_workers_counters_stay_and_its_gauges_go(segment: Segment) -> None:
    segment.slot(1).claim(incarnation=9, pid=2**22 - 1)
    # A pid that is not there has start 0; the slot remembers the start of a process that was.
    area = segment.slot(1).area
    from sidecar.shm import layout

    area[layout.START_TIME_OFFSET : layout.START_TIME_OFFSET + 8] = (12345).to_bytes(8, "little")
    (answer,) = get(segment, [request("/metrics")])
    assert 'kafka_sidecar_records_accepted_total{slot="1"} 11.0' in answer
    assert 'kafka_sidecar_clients_connected{slot="0"} 3.0' in answer
    assert 'kafka_sidecar_clients_connected{slot="1"} 0.0' in answer


def test_healthz(segment: Segment) -> None:
    assert get(segment, [request("/healthz")])[0].endswith("\r\n\r\nok\n")
    (bad,) = get(segment, [request("/healthz")], lambda: (False, "Kafka is not reachable."))
    assert bad.startswith("HTTP/1.1 503 Service Unavailable")
    assert bad.endswith("Kafka is not reachable.\n")


def test_readyz_follows_acceptance_and_not_kafka(segment: Segment, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(STATUS, "kafka_reachable", False)
    monkeypatch.setitem(STATUS, "state", "unreachable")
    (ready,) = get(segment, [request("/readyz")], lambda: (False, "Kafka is not reachable."))
    assert ready.startswith("HTTP/1.1 200")
    monkeypatch.setitem(STATUS, "accepts_records", False)
    monkeypatch.setitem(STATUS, "sentence", "The daemon is draining.")
    (bad,) = get(segment, [request("/readyz")])
    assert bad.startswith("HTTP/1.1 503") and bad.endswith("The daemon is draining.\n")


@pytest.mark.parametrize("path", ["/api/status", "/status.json"])
def test_the_state_as_json_begins_no_markup(segment: Segment, path: str) -> None:
    (answer,) = get(segment, [request(path)])
    head, body = answer.split("\r\n\r\n", 1)
    assert "Content-Type: application/json\r\n" in head and "nosniff" in head
    assert "<" not in body
    shown = json.loads(body)
    assert shown["run_dir"] == "/run/<b>&amp;" and shown["failures"][0]["client"] == "<u>web"
    assert shown["counters"]["records_accepted_total"] == 21


def test_the_page_gets_history_and_flows(segment: Segment) -> None:
    (answer,) = get(segment, [request("/api/status")])
    shown = json.loads(answer.split("\r\n\r\n", 1)[1])
    assert shown["history"]["columns"]["records_accepted_total"] == [21]
    assert shown["flows"] == {"topics": [], "topic_count": 0, "clients": [], "client_count": 0}
    assert abs(shown["now_ms"] - shown["history"]["at_ms"][0]) < 10_000


def test_many_pages_cost_one_look(segment: Segment, monkeypatch: pytest.MonkeyPatch) -> None:
    """Within a second all get the same answer; the next one is made again."""

    def looks() -> int:
        answers = get(segment, [request("/api/status")] * 5)
        return len({answer.split('"now_ms": ')[1].split(",")[0] for answer in answers})

    assert looks() == 1
    monkeypatch.setattr("sidecar.telemetry.shared_answer.SHARED_S", 0.0)
    monkeypatch.setattr("sidecar.telemetry.shared_answer.RENDER_BURST_S", float("inf"))
    assert looks() > 1


@pytest.mark.parametrize(
    ("raw", "status"),
    [
        (request("/nothing"), "404"),
        (request("/metrics", "POST"), "405"),
        (b"nonsense\r\n\r\n", "400"),
        (b"GET / HTTP/9.9\r\n\r\n", "400"),
    ],
)
def test_requests_that_are_not_answered(segment: Segment, raw: bytes, status: str) -> None:
    assert get(segment, [raw])[0].startswith(f"HTTP/1.1 {status} ")


def test_head_has_no_body_and_rubbish_closes(segment: Segment) -> None:
    head, half, long, good = get(
        segment,
        [
            request("/healthz", "HEAD"),
            b"GET / HT",
            b"GET /" + b"x" * 40_000 + b"\r\n\r\n",
            request("/healthz"),
        ],
    )
    assert head.endswith("\r\n\r\n")
    assert half == long == ""
    assert good.endswith("ok\n")


@pytest.mark.parametrize("said", [b"", b"GET /healthz HTTP/1.1\r\nHos"])
def test_connections_that_say_nothing_keep_nobody_out(segment: Segment, said: bytes) -> None:
    """As many as there may be, and renewed all the time: who asks is answered, and no more than that are kept."""

    async def run() -> None:
        exporter = Exporter(socket.create_server(("127.0.0.1", 0), backlog=BACKLOG))
        exporter.attach(segment)
        exporter.start(health=lambda: (True, ""), status=lambda: dict(STATUS))
        host, port = exporter.address.split(":")
        silent: list[tuple[asyncio.StreamReader, asyncio.StreamWriter]] = []
        for _ in range(3):
            for _ in range(CONNECTIONS_MAX):
                silent.append(await asyncio.open_connection(host, int(port)))
                silent[-1][1].write(said)
            reader, writer = await asyncio.open_connection(host, int(port))
            writer.write(request("/healthz"))
            assert (await asyncio.wait_for(reader.read(), PATIENCE_S)).endswith(b"ok\n")
            writer.close()
        ended = [asyncio.wait_for(each.read(), PATIENCE_S) for each, _ in silent[:-CONNECTIONS_MAX]]
        for outcome in await asyncio.gather(*ended, return_exceptions=True):
            assert outcome == b"" or isinstance(outcome, ConnectionResetError), outcome
        assert len(exporter._silent) + len(exporter._answered) <= CONNECTIONS_MAX
        for _, writer in silent:
            writer.close()
        exporter.close()

    asyncio.run(run())


@pytest.mark.parametrize(
    ("bound", "said"), [("REQUEST_TIMEOUT_S", b"GET /"), ("FIRST_BYTE_S", b"")], ids=["half", "nothing"]
)
def test_a_connection_that_never_asks_is_ended(
    segment: Segment, monkeypatch: pytest.MonkeyPatch, bound: str, said: bytes
) -> None:
    monkeypatch.setattr(f"sidecar.telemetry.exporter.{bound}", 0.02)

    async def run() -> None:
        exporter = Exporter(socket.create_server(("127.0.0.1", 0), backlog=BACKLOG))
        exporter.attach(segment)
        exporter.start(health=lambda: (True, ""), status=lambda: dict(STATUS))
        host, port = exporter.address.split(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        writer.write(said)
        with contextlib.suppress(ConnectionResetError):
            assert await asyncio.wait_for(reader.read(), PATIENCE_S) == b""
        writer.close()
        assert not exporter._silent
        exporter.close()

    asyncio.run(run())


async def ask_slowly(exporter: Exporter, path: str) -> socket.socket:
    """A client that asks and takes nothing. Its own buffer is small, so the answer stays where it is."""
    host, port = exporter.address.split(":")
    peer = socket.socket()
    peer.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2_304)
    peer.setblocking(False)
    loop = asyncio.get_running_loop()
    await loop.sock_connect(peer, (host, int(port)))
    await loop.sock_sendall(peer, request(path))
    return peer


@pytest.mark.parametrize("path", ["/metrics", "/api/status", "/status.json"])
def test_a_hundred_slow_readers_share_their_answers_and_keep_nobody_out(
    segment: Segment, monkeypatch: pytest.MonkeyPatch, path: str
) -> None:
    """No more connections than there may be, few answers made for all of them, and a probe among them is answered."""
    monkeypatch.setattr("sidecar.telemetry.exporter.SEND_BUFFER_BYTES", 2_304)
    monkeypatch.setitem(STATUS, "sentence", "x" * 60_000)  # never fits into the buffers of a connection
    monkeypatch.setitem(STATUS, "bootstrap", "y" * 60_000)
    made: list[int] = []

    def status() -> dict[str, Any]:
        made.append(1)
        return dict(STATUS)

    async def run() -> None:
        exporter = Exporter(socket.create_server(("127.0.0.1", 0), backlog=BACKLOG))
        exporter.attach(segment)
        exporter.start(health=lambda: (True, ""), status=status)
        host, port = exporter.address.split(":")
        slow = [await ask_slowly(exporter, path) for _ in range(100)]
        await until(lambda: len(exporter._answered) >= CONNECTIONS_MAX - 1)
        for _ in range(3):
            reader, writer = await asyncio.open_connection(host, int(port))
            writer.write(request("/healthz"))
            assert (await asyncio.wait_for(reader.read(), PATIENCE_S)).endswith(b"ok\n")
            writer.close()
            assert len(exporter._silent) + len(exporter._answered) <= CONNECTIONS_MAX
        assert len(made) <= 3, "all of them came within a second or two"
        for peer in slow:
            peer.close()
        exporter.close()

    asyncio.run(run())


def test_answers_that_nobody_takes_have_a_bound_and_the_oldest_is_not_waited_for(
    segment: Segment, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sidecar.telemetry.exporter.SEND_BUFFER_BYTES", 2_304)
    monkeypatch.setattr("sidecar.telemetry.exporter.ANSWER_BYTES_MAX", 2_500_000)
    monkeypatch.setitem(STATUS, "sentence", "x" * 1_000_000)

    async def run() -> None:
        exporter = Exporter(socket.create_server(("127.0.0.1", 0), backlog=BACKLOG))
        exporter.attach(segment)
        exporter.start(health=lambda: (True, ""), status=lambda: dict(STATUS))
        slow: list[socket.socket] = []
        kept: list[asyncio.Task[None]] = []
        for count in (1, 2, 2):
            slow.append(await ask_slowly(exporter, "/status.json"))
            await until(lambda: bool(exporter._answered) and list(exporter._answered)[-1] not in kept)
            await until(lambda: all(exporter._answered.values()))
            kept.append(list(exporter._answered)[-1])
            assert len(exporter._answered) == count
            assert 1_000_000 < sum(exporter._answered.values()) <= 2_500_000
        assert list(exporter._answered) == kept[1:]
        monkeypatch.setattr("sidecar.telemetry.exporter.ANSWER_BYTES_MAX", 10)
        host, port = exporter.address.split(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        writer.write(request("/status.json"))
        assert len(await asyncio.wait_for(reader.read(), PATIENCE_S)) > 1_000_000, (
            "one alone may be as large as it is"
        )
        writer.close()
        for peer in slow:
            peer.close()
        exporter.close()

    asyncio.run(run())


def test_a_reader_that_takes_nothing_is_closed(segment: Segment, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sidecar.telemetry.exporter.SEND_BUFFER_BYTES", 2_304)
    monkeypatch.setattr("sidecar.telemetry.exporter.REQUEST_TIMEOUT_S", 0.5)
    monkeypatch.setitem(STATUS, "sentence", "x" * 1_000_000)

    async def run() -> None:
        exporter = Exporter(socket.create_server(("127.0.0.1", 0), backlog=BACKLOG))
        exporter.attach(segment)
        exporter.start(health=lambda: (True, ""), status=lambda: dict(STATUS))
        peer = await ask_slowly(exporter, "/status.json")
        for has_one in (True, False):
            await until(lambda has_one=has_one: bool(exporter._answered) is has_one)  # type: ignore[misc]
        peer.close()
        exporter.close()

    asyncio.run(run())


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0, "0 s"), (59.9, "59 s"), (62, "1 min 2 s"), (3_600, "1 h 0 min"), (273_600, "3 d 4 h"), (-5, "0 s")],
)
def test_duration(seconds: float, text: str) -> None:
    assert duration(seconds) == text


def bugs(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if PLEASE_REPORT in record.getMessage()]


def test_an_error_in_an_answer_is_logged_once_a_minute_and_ends_only_that_connection(
    segment: Segment, caplog: pytest.LogCaptureFixture
) -> None:
    """The connection closed, and nothing said why."""

    def health() -> tuple[bool, str]:
        raise KeyError("brokers")

    answers = get(segment, [request("/healthz")] * 3 + [request("/metrics")], health)
    assert answers[:3] == ["", "", ""] and answers[3].startswith("HTTP/1.1 200 OK")
    assert len(bugs(caplog)) == 1 and caplog.records[-1].exc_info is not None


def test_an_error_while_a_connection_is_taken_is_logged_and_the_next_one_is_taken(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No scrape got an answer until a restart."""
    faults = [KeyError("x")]
    end_oldest = Exporter._end_oldest

    def failing(exporter: Exporter, most: int) -> None:
        if faults:
            raise faults.pop()
        end_oldest(exporter, most)

    monkeypatch.setattr(Exporter, "_end_oldest", failing)

    async def run() -> bytes:
        exporter = Exporter(socket.create_server(("127.0.0.1", 0), backlog=BACKLOG))
        exporter.start(health=lambda: (True, ""), status=lambda: dict(STATUS))
        host, port = exporter.address.split(":")
        _, first = await asyncio.open_connection(host, int(port))
        await until(lambda: not faults)
        reader, second = await asyncio.open_connection(host, int(port))
        second.write(request("/healthz"))
        answer = await asyncio.wait_for(reader.read(), PATIENCE_S)
        for writer in (first, second):
            writer.close()
        exporter.close()
        return answer

    assert asyncio.run(run()).startswith(b"HTTP/1.1 ")
    assert len(bugs(caplog)) == 1


def test_an_error_in_a_sample_is_logged_and_the_next_one_is_taken(
    segment: Segment, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The page's history ended."""
    faults = [KeyError("x")] * 3

    def totals(of: Segment) -> dict[str, int]:
        if faults:
            raise faults.pop()
        return column_totals(of)

    monkeypatch.setattr("sidecar.telemetry.exporter.column_totals", totals)
    monkeypatch.setattr("sidecar.telemetry.exporter.INTERVAL_S", 0.0)

    async def run() -> None:
        exporter = Exporter(socket.create_server(("127.0.0.1", 0), backlog=BACKLOG))
        exporter.attach(segment)
        exporter.start(health=lambda: (True, ""), status=lambda: dict(STATUS))
        await until(lambda: exporter._history.to_json()["at_ms"])
        exporter.close()

    asyncio.run(run())
    assert len(bugs(caplog)) == 1
