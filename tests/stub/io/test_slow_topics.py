"""Records that wait for a topic without a word: one warning says why and what to do, whoever waits for them."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
import os
import threading
import time
from collections.abc import Callable, Iterator

import pyarrow as pa
import pytest

from client_stub import AsyncProducer, Producer
from client_stub.contract.wire import Kind
from client_stub.errors import MetadataTimeout
from client_stub.io import slow_topics, topic_question
from client_stub.outbox.outbox import Outbox
from client_stub.outbox.submission import Submission
from tests.stub.conftest import eventually
from tests.stub.fake_daemon import FakeDaemon

REFUSAL = ("METADATA_TIMEOUT", "Topic ordres not present in metadata.")


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(slow_topics, "SLOW_MS", 20.0)
    monkeypatch.setattr(slow_topics, "CHECK_MS", 10.0)


@contextlib.contextmanager
def watching(work: Callable[[], None]) -> Iterator[None]:
    thread = threading.Thread(target=work)
    thread.start()
    try:
        yield
    finally:
        thread.join(10)


def lines(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [each.getMessage() for each in caplog.records if each.levelno == logging.WARNING]


@pytest.mark.parametrize(
    "wait", [lambda producer, sent: producer.flush(), lambda producer, sent: sent.result(), lambda *_: None]
)
def test_a_wait_without_a_timeout_says_once_what_is_missing(
    daemon: FakeDaemon, caplog: pytest.LogCaptureFixture, wait: Callable[[Producer, object], object]
) -> None:
    """close() waits in each of them; the records fail when max.block.ms is over, which the scripted daemon plays."""
    daemon.deliver = None
    daemon.topic_refusals["ordres"] = REFUSAL

    def end_when_told() -> None:
        eventually(lambda: lines(caplog))
        daemon.do(daemon.deliver_log)

    with Producer(daemon.run_dir) as producer, watching(end_when_told):
        sent = producer.send("ordres", b"1")
        producer.send("orders", b"2")
        wait(producer, sent)
        producer.close()
    (line,) = lines(caplog)
    assert line == (
        "1 record for topic ordres has waited 0 s: topic ordres is not in Kafka's metadata yet. "
        "Create it, or correct the name; after max.block.ms of the daemon its records fail."
    )


def test_several_topics_are_one_line_and_a_good_one_has_none(
    producer: Producer, daemon: FakeDaemon, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    daemon.deliver = None
    for topic in ("ordres", "bills", "forbidden"):
        daemon.topic_refusals[topic] = REFUSAL
    monkeypatch.setattr(slow_topics, "SLOW_MS", math.inf)
    for topic in ("orders", "ordres", "bills", "ordres", "forbidden"):
        producer.send(topic, b"1")
    producer.flush(until="accepted")
    monkeypatch.setattr(slow_topics, "SLOW_MS", 0.0)
    (line,) = eventually(lambda: lines(caplog))
    assert line.startswith("4 records for topic ordres and 2 others have waited 0 s: topic ordres is not in")


def test_so_many_topics_are_asked_about_and_no_more(
    producer: Producer, daemon: FakeDaemon, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    daemon.deliver = None
    names = [f"t{number}" for number in range(slow_topics.TOPICS_ASKED_MAX + 1)]
    daemon.topic_refusals.update(dict.fromkeys(names, REFUSAL))
    monkeypatch.setattr(slow_topics, "SLOW_MS", math.inf)
    for name in names:
        producer.send(name, b"1")
    producer.flush(until="accepted")
    monkeypatch.setattr(slow_topics, "SLOW_MS", 0.0)
    (line,) = eventually(lambda: lines(caplog))
    assert line.startswith(f"{len(names) - 1} records for topic t0 and {len(names) - 2} others have waited")


@pytest.mark.parametrize("call", ["send", "send_many", "send_arrow"])
def test_a_partition_that_the_topic_does_not_have_is_named(
    producer: Producer,
    daemon: FakeDaemon,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
    call: str,
) -> None:
    """The scripted daemon's topics have one partition. Records that name none do not wait for it."""
    daemon.deliver = None
    monkeypatch.setattr(slow_topics, "SLOW_MS", math.inf)
    producer.send("a", b"1")
    producer.flush(10, until="accepted")
    if call == "send":
        producer.send("a", b"1", partition=9)
    elif call == "send_many":
        producer.send_many("a", [(None, b"1", None, 9), (None, b"1", None, 3)])
    else:
        producer.send_arrow("a", pa.table({"value": [b"1"], "partition": [9]}))
    producer.flush(10, until="accepted")
    monkeypatch.setattr(slow_topics, "SLOW_MS", 0.0)
    (line,) = eventually(lambda: lines(caplog))
    count = "2 records for topic a have" if call == "send_many" else "1 record for topic a has"
    assert line == (
        f"{count} waited 0 s: topic a has 1 partition, and partition 9 is not in Kafka's metadata yet. "
        "Create it, or correct the number; after max.block.ms of the daemon its records fail."
    )


def test_an_await_that_times_out_names_what_the_warning_named(
    daemon: FakeDaemon, caplog: pytest.LogCaptureFixture
) -> None:
    daemon.deliver = None

    async def main() -> None:
        async with AsyncProducer(daemon.run_dir) as producer:
            future = await producer.send("a", b"1", partition=9)
            await asyncio.to_thread(eventually, lambda: lines(caplog))
            with pytest.raises(TimeoutError) as raised:
                await asyncio.wait_for(future, 0.01)
            assert str(raised.value.__cause__) == (
                "The record for topic a has no outcome yet: topic a has 1 partition, and partition 9 is not in Kafka's "
                "metadata yet."
            )
            daemon.do(daemon.deliver_log)

    asyncio.run(main())


def test_the_line_about_records_that_are_left_repeats_the_cause(
    daemon: FakeDaemon, caplog: pytest.LogCaptureFixture
) -> None:
    """ "The daemon delivers it" alone was no help for a topic that Kafka does not have."""
    daemon.deliver = None
    daemon.topic_refusals["ordres"] = REFUSAL
    producer = Producer(daemon.run_dir)
    producer.send("ordres", b"1")
    eventually(lambda: lines(caplog))
    producer._engine.close(0, "after KeyError")
    assert lines(caplog)[1].endswith(
        "the daemon has accepted it, and delivers it once that can be: topic ordres is not in Kafka's metadata yet."
    )


def test_the_line_about_records_that_are_left_asks_the_daemon_at_once(
    daemon: FakeDaemon, caplog: pytest.LogCaptureFixture
) -> None:
    """A script that ends within two seconds of its misspelt topic was told that the daemon delivers its record."""
    daemon.deliver = None
    daemon.topic_refusals["ordres"] = REFUSAL
    producer = Producer(daemon.run_dir)
    for _ in range(2):
        producer.send("ordres", b"1")
    producer.flush(10, until="accepted")
    producer._engine.close(0, "after KeyError")
    (line,) = lines(caplog)
    assert line.endswith(
        "the daemon has accepted them, and delivers them once that can be: topic ordres is not in Kafka's metadata yet."
    )


def test_the_line_about_records_that_are_left_does_not_ask_a_daemon_that_is_away(
    daemon: FakeDaemon, caplog: pytest.LogCaptureFixture
) -> None:
    daemon.deliver = None
    producer = Producer(daemon.run_dir)
    producer.send("t", b"1")
    producer.flush(10, until="accepted")
    daemon.stop()
    eventually(lambda: producer._engine.outbox.waiters.reasons.last_word)
    producer._engine.close(0, "after KeyError")
    assert any("the daemon has accepted it and delivers it." in line for line in lines(caplog))


def test_no_advice_to_create_a_topic_while_kafka_is_away(
    daemon: FakeDaemon, caplog: pytest.LogCaptureFixture
) -> None:
    """The daemon knows why it has no metadata, and only the command line said so."""
    daemon.deliver = None
    away = "Kafka is not reachable (bootstrap.servers a:1): Connection refused"
    daemon.topic_refusals["new"] = (
        "METADATA_TIMEOUT",
        f"Topic new is not there. {away}.",
        None,
        f"{away}.",
    )
    producer = Producer(daemon.run_dir)
    sent = producer.send("new", b"1")
    eventually(lambda: lines(caplog))
    (line,) = lines(caplog)
    assert f"topic new is not in Kafka's metadata yet: {away}. " in line and "Create it" not in line
    with pytest.raises(TimeoutError) as late:
        sent.result(1.0)
    assert str(late.value).endswith(f"topic new is not in Kafka's metadata yet: {away}.")
    with pytest.raises(MetadataTimeout, match=r"after 100 ms\. Kafka is not reachable"):
        producer.partitions_for("new", 0.1)
    producer.close(0)


class Counted(Submission):
    """A submission that counts how often one was looked at."""

    looks = 0

    @property
    def queued_ms(self) -> float:  # type: ignore[override]
        Counted.looks += 1
        return self.since_ms

    @queued_ms.setter
    def queued_ms(self, since_ms: float) -> None:
        self.since_ms = since_ms


@pytest.mark.parametrize("slow", [0, 1, 64, 200])
def test_only_the_oldest_records_are_looked_at(daemon: FakeDaemon, slow: int) -> None:
    """Twice a second, with any number of younger ones behind them."""
    outbox = Outbox(max_block_ms=0, connect_timeout_ms=0, path=str(daemon.run_dir))
    Counted.looks = 0
    for number in range(10_000):
        each = Counted(outbox.waiters, "a", None, 0, 0)
        each.queued_ms = 1_000.0 if number < slow else 2_000.0
        outbox.pending[each] = None
    looker = slow_topics.SlowTopics(outbox, lambda *_: pytest.fail("nothing was accepted"))
    found = looker._slow(1_000.0 + slow_topics.SLOW_MS)
    assert len(found) == slow and Counted.looks <= 2 * slow + 1


def test_while_kafka_is_slow_the_daemon_is_not_asked_over_and_over(
    producer: Producer, daemon: FakeDaemon, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(slow_topics, "AGAIN_MS", 600_000.0)
    daemon.deliver = None
    asked: list[list[str]] = []
    tell = daemon._tell_topics
    monkeypatch.setattr(
        daemon, "_tell_topics", lambda routing_id, names: (asked.append(names), tell(routing_id, names))
    )
    producer.send("a", b"1")
    eventually(lambda: asked)
    io = producer._engine.io
    assert io is not None
    slow = io._slow_topics
    eventually(lambda: slow._question is None)
    assert slow.due_ms - time.monotonic() * 1e3 > 300_000 and asked == [["a"]]


def test_the_reason_of_a_held_topic_needs_no_question(
    producer: Producer, daemon: FakeDaemon, caplog: pytest.LogCaptureFixture
) -> None:
    producer.send("a", b"0").result(10)
    daemon.accept = lambda client, submit: False
    daemon.do(lambda: daemon.tell(daemon.only_client, [Kind.HOLD, 1, 2, "topic a is over its share"]))
    producer.send("a", b"1")
    (line,) = eventually(lambda: lines(caplog))
    assert (
        "waited 0 s: the daemon holds topic a (topic a is over its share). `kafka-sidecar explain a`" in line
    )


def test_a_daemon_that_is_away_has_its_own_warning(
    producer: Producer, daemon: FakeDaemon, caplog: pytest.LogCaptureFixture
) -> None:
    daemon.deliver = None
    producer.send("a", b"0")
    producer.flush(10, until="accepted")
    daemon.stop()
    (line,) = eventually(lambda: lines(caplog))
    assert "has been away" in line


def test_an_await_on_a_loop_gets_the_warning_too(
    daemon: FakeDaemon, caplog: pytest.LogCaptureFixture
) -> None:
    daemon.deliver = None
    daemon.topic_refusals["ordres"] = REFUSAL

    async def main() -> None:
        async with AsyncProducer(daemon.run_dir) as producer:
            waiting = asyncio.ensure_future(producer.send_and_wait("ordres", b"1"))
            await asyncio.to_thread(eventually, lambda: lines(caplog))
            daemon.do(daemon.deliver_log)
            await waiting

    asyncio.run(main())
    assert len(lines(caplog)) == 1


def test_a_child_forked_amid_the_question_gives_up_its_copy(
    producer: Producer, daemon: FakeDaemon, monkeypatch: pytest.MonkeyPatch
) -> None:
    daemon.deliver = None
    monkeypatch.setattr(topic_question, "ANSWER_MS", 10_000.0)
    asked: list[int] = []
    daemon._tell_topics = lambda routing_id, names: asked.append(1)  # type: ignore[method-assign]  # no answer
    producer.send("ordres", b"1")
    eventually(lambda: asked)
    io = producer._engine.io
    assert io is not None and io._slow_topics._question is not None
    transport = io._slow_topics._question.lookup._transport
    assert transport is not None
    child = os.fork()
    if not child:
        os._exit(len(transport._links))
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
