"""FakeProducer behaves as Producer does against a daemon that delivers at once, and fails or waits on demand."""

from __future__ import annotations

from typing import Any

import pytest

from client_stub import Producer, errors
from client_stub.testing import FakeProducer, FakeRecord, fake_producer  # noqa: F401 (a fixture)
from tests.stub.fake_daemon import FakeDaemon


@pytest.fixture(params=["fake", "real"])
def either(request: pytest.FixtureRequest, daemon: FakeDaemon) -> Any:
    return FakeProducer() if request.param == "fake" else Producer(daemon.run_dir)


def test_what_a_program_sees_is_the_same(either: Any) -> None:
    seen: list[tuple[Any, Any]] = []
    with either as producer:
        first = producer.send("orders", b"1", key=b"k", on_delivery=lambda *both: seen.append(both))
        second = producer.send("orders", value=b"2", headers=[("h", b"v")], timestamp_ms=7)
        assert (first.result(10).offset, second.result(10).offset) == (0, 1)
        assert second.result(10).timestamp_ms == 7 and first.done() and first.exception(0) is None
        assert seen == [(None, first.result(10))]
        bulk = producer.send_many("orders", [(b"k", b"3"), (None, b"4", None, 0)])
        assert bulk.result(10) == bulk.count == 2 and bulk.done() and bulk.first_error is None
        assert bulk.offsets() == ((0, 2, 2),)
        told: list[Any] = []
        first.add_done_callback(told.append)
        bulk.add_done_callback(told.append)
        producer.send_many("orders", []).add_done_callback(lambda each: told.append(each.count))
        assert told == [first, bulk, 0]
        stats = producer.stats()
        assert (stats.sent, stats.delivered, stats.failed, stats.waiting) == (4, 4, 0, 0)
        assert stats.is_connected and not producer.flush(10)
        for wrong in (
            {"value": "text"},
            {"value": b"x", "partition": -1},
            {"value": b"x", "timestamp_ms": -1},
        ):
            with pytest.raises((TypeError, ValueError)):
                producer.send("orders", **wrong)
    with pytest.raises(errors.ProducerClosed):
        producer.send("orders", b"late")


def test_records_are_kept_as_they_were_sent(fake_producer: FakeProducer) -> None:  # noqa: F811
    fake_producer.send("a", b"v", b"k", [("h", None)], 3, 9)
    fake_producer.send_many("b", [(None, b"w")])
    assert fake_producer.records == [
        FakeRecord("a", b"k", b"v", [("h", None)], 3, 9),
        FakeRecord("b", None, b"w", None, None, None),
    ]


def test_failures_on_demand() -> None:
    def refuse(record: FakeRecord) -> errors.SidecarError | None:
        return errors.error_for(29) if record.topic == "forbidden" else None

    with FakeProducer(fail_with=refuse) as producer:
        bulk = producer.send_many("forbidden", [(None, b"x"), (None, b"y")])
        with pytest.raises(errors.TopicAuthorizationFailed):
            bulk.result(0)
        assert bulk.failed_count == 2
        producer.send("allowed", b"x").result(0)
        assert [producer.flush(), producer.flush()] == [2, 0]


def test_outcomes_that_are_held() -> None:
    producer = FakeProducer(partitions=4)
    producer.hold()
    held = producer.send("a", b"x", key=b"k")
    assert not held.done()
    with pytest.raises(TimeoutError, match="no outcome after 0 s"):
        held.result(0)
    with pytest.raises(TimeoutError, match="1 records have no outcome"):
        producer.flush(0)
    assert producer.flush(0, until="accepted") == 0
    producer.release()
    assert held.result(0).partition == producer.send("a", b"y", key=b"k").result(0).partition
    producer.hold()
    cut = producer.send("a", b"z")
    producer.close(0)
    assert isinstance(cut.exception(0), errors.DeliveryCancelled)
