"""Goal: Producer and AsyncProducer take a trace, which gets the moments of their records in the io thread."""

from __future__ import annotations

import asyncio
import os
import re
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from client_stub import AsyncProducer, Producer
from client_stub.testing import FakeProducer
from tests.stub.fake_daemon import FakeDaemon

ROOT = Path(__file__).resolve().parents[3]
Moments = list[tuple[str, dict[str, Any], str]]


@pytest.fixture
def moments() -> Moments:
    return []


@pytest.fixture
def trace(moments: Moments) -> Callable[[str, dict[str, Any]], None]:
    return lambda moment, info: moments.append((moment, info, threading.current_thread().name))


def check_whole(moments: Moments, count: int) -> None:
    names = [name for name, _, _ in moments]
    assert names[:2] == ["connection.opening", "connection.attached"]
    assert names[-1] == "connection.closed"
    assert {thread for _, _, thread in moments} == {"kafka-sidecar-io"}
    for name in ("records.queued", "records.acknowledged"):
        assert sum(info["count"] for each, info, _ in moments if each == name) == count
    assert "records.sent" in names and "records.failed" not in names


def test_a_producer_hands_over_the_moments_of_all_its_records(
    daemon: FakeDaemon, moments: Moments, trace: Callable[..., None]
) -> None:
    with Producer(daemon.run_dir, trace=trace) as producer:
        producer.send("t", b"1").result(10)
        producer.send_many("t", [(None, b"v")] * 5000).result(10)
    check_whole(moments, 5001)


def test_an_async_producer_calls_it_in_the_io_thread(
    daemon: FakeDaemon, moments: Moments, trace: Callable[..., None]
) -> None:
    async def main() -> None:
        async with AsyncProducer(daemon.run_dir, trace=trace) as producer:
            await (await producer.send("t", b"1"))
            await (await producer.send_many("t", [(None, b"v")] * 100))

    asyncio.run(main())
    check_whole(moments, 101)


def test_records_that_close_cancels_have_failed(
    daemon: FakeDaemon, moments: Moments, trace: Callable[..., None]
) -> None:
    daemon.deliver = None
    producer = Producer(daemon.run_dir, trace=trace)
    delivery = producer.send("t", b"1")
    producer.flush(10, until="accepted")
    producer.close(0)
    (failed,) = (info for name, info, _ in moments if name == "records.failed")
    assert failed["error"] is delivery.exception() and failed["count"] == 1 and failed["left"] == 0


def test_a_trace_may_send(daemon: FakeDaemon) -> None:
    sent = []

    def trace(moment: str, info: dict[str, Any]) -> None:
        if moment == "records.acknowledged" and not sent:
            sent.append(producer.send("t", b"2"))

    producer = Producer(daemon.run_dir, trace=trace)
    producer.send("t", b"1").result(10)
    producer.close(10)
    assert sent[0].result(0).offset == 1


def test_a_forked_child_traces_its_own_records(
    daemon: FakeDaemon, moments: Moments, trace: Callable[..., None]
) -> None:
    producer = Producer(daemon.run_dir, trace=trace)
    producer.send("t", b"1").result(10)
    child = os.fork()
    if child == 0:
        moments.clear()
        producer.send("t", b"2").result(10)
        found = [name for name, _, _ in moments]
        os._exit(found.count("connection.attached") != 1 or found.count("records.queued") != 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    producer.close(10)


@pytest.mark.parametrize("kind", [Producer, AsyncProducer, FakeProducer])
def test_a_trace_that_cannot_be_called_is_refused(kind: Callable[..., object], tmp_path: Path) -> None:
    with pytest.raises(TypeError, match=r"trace\(moment, info\)"):
        kind(tmp_path, trace="spans")


def test_the_example_of_the_page_makes_a_span_of_each_submission(
    daemon: FakeDaemon, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    page = (ROOT / "docs" / "stub-api.md").read_text()
    (example,) = re.findall(r"```python\n(.*?)```", page.split("## Tracing")[1].split("\n## ")[0], re.DOTALL)
    monkeypatch.setenv("KAFKA_SIDECAR_RUN_DIR", str(daemon.run_dir))
    exec(compile(example, "stub-api.md", "exec"), {"__name__": "__main__"})
    (line,) = capsys.readouterr().out.splitlines()
    assert line.startswith("send orders {'messaging.system': 'kafka'")
    assert "records.queued" in line and "records.sent" in line and "records.acknowledged" in line
