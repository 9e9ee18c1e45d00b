"""Bugs of our own: ER-07. The daemon's code is made to fail where nobody foresaw it (see fault_hook/), and the stub's
io thread likewise. All who wait or come later get an answer, and nothing is lost or doubled."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from urllib.error import HTTPError

import pytest

from client_stub import Producer, errors
from client_stub.session.session import Session
from sidecar.tools.testing.daemon import SidecarDaemon
from sidecar.tools.testing.fake_broker import FakeBroker
from sidecar.tools.testing.fault_rules import ALWAYS, on
from sidecar.tools.testing.kafka_frames import Api
from sidecar.tools.testing.ledger import Ledger
from sidecar.tools.testing.metrics import http_get, metric
from sidecar.tools.testing.waiting import wait_until

from .harness import FAST, METRIC, Harness, Sender, enter_records

pytestmark = [pytest.mark.process]

HOOK = Path(__file__).parent / "fault_hook"
EXCEPTIONS = f"{METRIC}sender_exceptions_total"


class FaultyHarness(Harness):
    """A daemon that fails where it is told to."""

    def __init__(self, kafka: FakeBroker, daemon: SidecarDaemon, fault: Path) -> None:
        super().__init__(kafka, daemon)
        self._fault = fault

    def fail(self, place: str) -> None:
        """The next time that the daemon comes there, or with ``!`` each time, until :meth:`heal`."""
        new = self._fault.with_suffix(".new")
        new.write_text(place)
        new.rename(self._fault)

    def wait_failed(self) -> None:
        wait_until(lambda: not self._fault.exists(), "the daemon to come where it fails")

    def heal(self) -> None:
        self._fault.unlink(missing_ok=True)

    @property
    def health(self) -> str:
        """ok, or why not."""
        try:
            return http_get(self.daemon, "/healthz").strip()
        except HTTPError as error:
            assert error.code == 503
            return error.read().decode().strip()

    def check(self, *senders: Sender) -> None:
        """As ``balance``, without its ban on exceptions."""
        ledger = Ledger()
        for sender in senders:
            sender.enter(ledger)
        for topic in {sender.topic for sender in senders}:
            enter_records(
                ledger, topic, ((each.value or b"", each.partition) for each in self.kafka.records(topic))
            )
        ledger.check()
        assert not self.kafka.bad_batches


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[FaultyHarness]:
    fault = tmp_path_factory.mktemp("faults") / "fault"
    path = os.pathsep.join([str(HOOK), *filter(None, [os.environ.get("PYTHONPATH")])])
    environment = {"PYTHONPATH": path, "SIDECAR_TEST_FAULT": str(fault)}
    with (
        FakeBroker(nodes=2) as kafka,
        SidecarDaemon(kafka.bootstrap_servers, settings=FAST, environment=environment) as daemon,
    ):
        yield FaultyHarness(kafka, daemon, fault)


@pytest.fixture
def harness(shared: FaultyHarness) -> Iterator[FaultyHarness]:
    shared.daemon.wait_ready()
    yield shared
    shared.heal()
    shared.kafka.clear_rules()


def test_er_07_one_bad_iteration(harness: FaultyHarness) -> None:
    """ER-07: an iteration of the sender fails once: it is counted, the worker goes on, and so do the records."""
    _, sender = harness.primed()
    with sender:
        workers, failed = harness.daemon.worker_pids(), metric(harness.daemon, EXCEPTIONS)
        harness.fail("iteration")
        for _ in range(10):
            sender.send()
        assert sender.offsets() == list(range(11))
        harness.wait_failed()
        harness.check(sender)
    assert metric(harness.daemon, EXCEPTIONS) == failed + 1
    assert harness.daemon.worker_pids() == workers


@pytest.mark.parametrize("place", ["settlement", "answer", "submission", "housekeeping"])
def test_er_07_the_worker_is_replaced(harness: FaultyHarness, place: str) -> None:
    """ER-07: a failed step cannot be repeated where it failed, so the worker ends. Its successor finishes the
    accepted records from the segment, each once and in order, and later callers notice nothing."""
    topic, sender = harness.primed()
    with sender:
        workers = harness.daemon.worker_pids()
        held = harness.kafka.add(on(Api.PRODUCE, topic=topic).hold_answer())
        for _ in range(10):
            sender.send()
        held.wait()
        harness.fail(place)
        held.release()
        for _ in range(10):
            sender.send()
        harness.wait_failed()
        assert sorted(sender.offsets()) == list(range(21))
        wait_until(lambda: harness.daemon.worker_pids() not in ([], workers), "another worker")
        with harness.sender(topic) as later:
            later.send()
            later.offsets()
            harness.check(sender, later)
    wait_until(lambda: harness.health == "ok", "health to be good again")
    assert "is replaced" in harness.daemon.log_path.read_text()


def test_er_07_the_answer_to_init_producer_id(harness: FaultyHarness) -> None:
    """ER-07: without a producer id everything would wait for ever; the worker ends, and its successor asks again."""
    topic = harness.new_topic()
    harness.fail("producer id")
    harness.replace_worker()
    with harness.sender(topic) as sender:
        sender.send()
        assert sender.offsets() == [0]
        harness.wait_failed()
        harness.check(sender)


def test_er_07_a_request_that_cannot_be_made(harness: FaultyHarness) -> None:
    """ER-07: nothing of it left: request.timeout.ms, or the worker's end, brings its batches back."""
    _, sender = harness.primed()
    with sender:
        harness.fail("request")
        sender.send()
        harness.wait_failed()
        harness.replace_worker()
        assert sender.offsets() == [0, 1]
        harness.check(sender)


def test_er_07_it_fails_each_time(harness: FaultyHarness) -> None:
    """ER-07: every iteration fails, in every worker. Each ends by itself, health is bad and says why, and callers get
    an answer by their own patience. All is delivered once the fault is gone."""
    _, sender = harness.primed()
    with sender:
        harness.fail("iteration!")
        for _ in range(10):
            sender.send()
        said = wait_until(
            lambda: harness.health if "exited with status" in harness.health else "", "health to turn bad"
        )
        assert "No worker is ready." in said
        assert harness.daemon.info()["takes_records"] is False
        with pytest.raises(TimeoutError):
            sender.producer.flush(0.1)
        harness.heal()
        assert sender.offsets() == list(range(11))
        harness.check(sender)
    wait_until(lambda: harness.health == "ok", "health to be good again")
    assert harness.daemon.status()["restarts"] > 0


def test_er_07_metadata_cannot_be_taken_in(harness: FaultyHarness) -> None:
    """ER-07: the controller fails over each metadata answer: health says so, known topics go on, and what waits for a
    new one is delivered when the fault is gone."""
    _, sender = harness.primed()
    with sender:
        harness.fail("metadata!")
        with harness.sender(harness.new_topic()) as waiting:
            waiting.send()
            wait_until(lambda: "could not be handled" in harness.health, "health to turn bad")
            sender.send()
            assert sender.offsets() == [0, 1]
            assert not waiting.deliveries[0].done()
            harness.heal()
            assert waiting.offsets() == [0]
            harness.check(sender, waiting)
    wait_until(lambda: harness.health == "ok", "health to be good again")


def test_er_07_the_stubs_own_thread(harness: FaultyHarness, monkeypatch: pytest.MonkeyPatch) -> None:
    """ER-07: the io thread of one producer fails. Its waiting and later callers hear so; misuse before that was
    raised and harmed nothing. Another producer of the process goes on."""
    topic, other = harness.primed()
    sender = harness.sender(topic)
    with pytest.raises(TypeError):
        sender.producer.send(topic, "text")  # type: ignore[arg-type]
    sender.send()
    sender.offsets()
    held = harness.kafka.add(on(Api.PRODUCE, topic=topic, times=ALWAYS).hold_answer())
    sender.send()
    held.wait()
    usual = Session.receive_worker

    def fails(session: Session, frames: list[bytes], now_ms: float) -> None:
        if session.attachment._identity._name == sender.name:
            raise RuntimeError("a fault of the test")
        usual(session, frames, now_ms)

    monkeypatch.setattr(Session, "receive_worker", fails)
    held.remove()
    error = sender.outcomes()[1].error
    assert error is not None
    assert "io thread failed: RuntimeError('a fault of the test')" in str(error)
    assert error.persistence == 1
    with pytest.raises(errors.SidecarError, match="io thread failed"):
        sender.producer.send(topic, b"later")
    sender.producer.flush(5)  # nothing is undecided
    sender.producer.close(5)
    with other:
        other.send()
        assert other.outcomes()[-1].error is None
        harness.check(sender, other)
    with Producer(run_dir=str(harness.daemon.run_dir)) as anew:
        assert anew.send(topic, b"another/0|%s-0|" % topic.encode()).result(10).offset == 4
