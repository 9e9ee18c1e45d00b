"""RequestBufferPool, ProducerConfig, ExponentialBackoff, InFlightRequests and the error rows."""

from __future__ import annotations

import random

import pytest

from client_stub.contract.error_codes import ERROR_CODES
from client_stub.contract.wire import Persistence
from sidecar.common.backoff import ExponentialBackoff
from sidecar.common.errors import Code, classify
from sidecar.config.rules import config_of
from sidecar.producer.config import ProducerConfig
from sidecar.producer.in_flight import InFlightRequests
from sidecar.producer.request_capacity import RequestBuffer, RequestBufferPool
from sidecar.producer.throttle_times import SAMPLE_MS, ThrottleTimes
from tests.configs import DEFAULTS, config_with

MIB = 1024 * 1024


def test_request_buffers_are_bounded_and_reused() -> None:
    pool = RequestBufferPool(max_request_size=MIB, limit_bytes=2 * MIB)
    first, second = pool.take(MIB), pool.take(700_000)
    assert first is not None
    assert second is not None
    assert pool.take(1) is None
    assert pool.free_bytes_max() == 0
    pool.give(first)
    assert pool.free_bytes_max() == MIB
    assert pool.take(MIB) is first
    with pytest.raises(AssertionError, match="given back twice"):
        pool.give(second)
        pool.give(second)


def test_a_small_request_takes_a_small_buffer() -> None:
    pool = RequestBufferPool(max_request_size=MIB, limit_bytes=2 * MIB)
    buffer = pool.take(100)
    assert buffer is not None
    assert len(buffer.view) == 64 * 1024
    assert pool.taken_bytes == 64 * 1024


def test_the_free_size_of_the_buffer_pool_can_be_taken() -> None:
    """Size classes and the reserve, at every state that requests of any size leave."""
    rng = random.Random(7)
    for max_request_size in (40_000, 100_000, 1_000_000, MIB, 3 * MIB):
        pool = RequestBufferPool(max_request_size=max_request_size, limit_bytes=5 * max_request_size)
        lent: list[RequestBuffer] = []
        for _ in range(300):
            room, spare = pool.free_bytes_max(), pool.free_bytes_max(reserve_requests=1)
            assert spare <= room
            size = spare if rng.random() < 0.5 else room
            buffer = pool.take(min(size, max_request_size)) if size else None
            assert (buffer is None) == (size == 0)
            if buffer is not None:
                lent.append(buffer)
                if size == spare:
                    assert pool.free_bytes_max() >= max_request_size, "the reserve is left"
            while lent and rng.random() < 0.6:
                pool.give(lent.pop(rng.randrange(len(lent))))


def test_one_request_of_any_size_is_lent_a_buffer_when_no_other_has_one() -> None:
    pool = RequestBufferPool(max_request_size=MIB, limit_bytes=2 * MIB)
    lent = pool.take(MIB)
    assert lent is not None
    pool.give(lent)
    large = pool.take(5 * MIB)
    assert large is not None
    assert len(large.view) == 5 * MIB
    assert pool.free_bytes == 0
    assert pool.take(1) is None
    assert pool.free_bytes_max() == 0
    pool.give(large)
    assert (pool.taken_bytes, pool.free_bytes) == (0, 0), "no other request would use it again"
    small = pool.take(1)
    assert small is not None
    assert pool.take(2 * MIB) is None


def test_free_buffers_of_another_size_make_room() -> None:
    pool = RequestBufferPool(max_request_size=MIB, limit_bytes=2 * MIB)
    small = [pool.take(1000) for _ in range(32)]
    assert None not in small
    assert pool.take(1) is None
    for buffer in small:
        assert buffer is not None
        pool.give(buffer)
    assert pool.free_bytes == 2 * MIB
    assert pool.take(MIB) is not None
    assert pool.taken_bytes + pool.free_bytes <= pool.limit_bytes
    for _ in range(2):
        pool.trim_unused()
    assert pool.free_bytes == 0


def test_two_largest_requests_must_fit() -> None:
    with pytest.raises(ValueError, match=r"max\.request\.size=1048576 must fit"):
        RequestBufferPool(max_request_size=MIB, limit_bytes=2 * MIB - 1)


@pytest.mark.rule("A2")
def test_taken_and_free_never_exceed_the_limit() -> None:
    rng = random.Random(5)
    pool = RequestBufferPool(max_request_size=MIB, limit_bytes=4 * MIB)
    lent: list[RequestBuffer] = []
    for _ in range(3000):
        if lent and rng.random() < 0.5:
            pool.give(lent.pop(rng.randrange(len(lent))))
        else:
            buffer = pool.take(rng.randint(1, MIB))
            if buffer is not None:
                assert all(buffer is not other for other in lent)
                lent.append(buffer)
        assert pool.taken_bytes == sum(buffer.size for buffer in lent)
        assert pool.taken_bytes + pool.free_bytes <= pool.limit_bytes
        assert pool.taken_count == len(lent)


def test_config_from_kafkas_names() -> None:
    """Also the daemon's own, by their keys: one function makes every room's configuration of the concluded values."""
    changed = {"linger.ms": 7, "compression.type": "zstd", "daemon.connections_per_broker": 1}
    config = config_of(ProducerConfig, {**DEFAULTS, **changed})
    assert (config.linger_ms, config.acks, config.compression_type) == (7, -1, "zstd")
    assert (config.connections_per_broker, config.batch_growth_bytes) == (1, 512 << 10)
    with pytest.raises(KeyError, match=r"linger\.ms"):
        config_of(ProducerConfig, {name: value for name, value in DEFAULTS.items() if name != "linger.ms"})


def test_config_defaults_are_kafkas() -> None:
    """V5."""
    config = config_with(ProducerConfig)
    assert (config.acks, config.enable_idempotence, config.retries) == (-1, True, 2**31 - 1)
    assert (config.batch_size, config.linger_ms, config.max_request_size) == (16384, 5, 1048576)
    assert (config.request_timeout_ms, config.delivery_timeout_ms, config.max_block_ms) == (30e3, 120e3, 60e3)
    assert (config.retry_backoff_ms, config.retry_backoff_max_ms) == (100, 1000)
    assert config.max_in_flight_requests_per_connection == 5


@pytest.mark.rule("S3")
def test_backoff_doubles_and_jitters_within_its_bounds() -> None:
    rng = random.Random(1)
    backoff = ExponentialBackoff(100, 1000, rng.random)
    for attempts, middle in enumerate((100, 200, 400, 800)):
        delays = [backoff.backoff_ms(attempts) for _ in range(500)]
        assert middle * 0.8 <= min(delays) < middle * 0.9
        assert middle * 1.1 < max(delays) <= min(middle * 1.2, 1000)
    # In the end the jitter is around the maximum, and what it adds is cut off.
    last = [backoff.backoff_ms(10_000) for _ in range(500)]
    assert 800 <= min(last) < 850
    assert sum(delay == 1000 for delay in last) > 100


def test_in_flight_requests_end_once() -> None:
    in_flight = InFlightRequests(2, timeout_ms=10)
    request = in_flight.begin(3, 0, -1, [], 0)
    assert in_flight.timed_out(9) == []
    assert in_flight.timed_out(10) == [3]
    assert in_flight.end(request)
    assert not in_flight.end(request)
    assert in_flight.next_deadline_ms == float("inf")
    assert len(in_flight) == 0


def test_every_code_of_the_stub_has_a_row() -> None:
    for code, row in ERROR_CODES.items():
        assert (classify(code).name, classify(code).retriable) == (row.name, row.retriable)


@pytest.mark.rule("S3")
@pytest.mark.parametrize(
    ("code", "persistence"),
    [
        (Code.NONE, Persistence.PERSISTED),
        (Code.DUPLICATE_SEQUENCE_NUMBER, Persistence.PERSISTED),
        (Code.NOT_ENOUGH_REPLICAS, Persistence.NOT_PERSISTED),
        (Code.NOT_ENOUGH_REPLICAS_AFTER_APPEND, Persistence.POSSIBLY_PERSISTED),
        (Code.REQUEST_TIMED_OUT, Persistence.POSSIBLY_PERSISTED),
        (Code.NETWORK_EXCEPTION, Persistence.POSSIBLY_PERSISTED),
        (Code.MESSAGE_TOO_LARGE, Persistence.NOT_PERSISTED),
    ],
)
def test_persistence_of_each_error(code: int, persistence: Persistence) -> None:
    assert classify(code).persistence == persistence


def test_an_unknown_code_is_final_and_may_have_been_appended() -> None:
    row = classify(31_000)
    assert (row.retriable, row.persistence) == (False, Persistence.POSSIBLY_PERSISTED)
    assert "31000" in row.text


def test_code_names_are_kafkas() -> None:
    for code in Code:
        assert ERROR_CODES[code].name == code.name


def test_throttle_times_are_those_of_the_last_samples() -> None:
    """Kafka: SenderTest.testQuotaMetrics. 400, 100, 200, 300: 250 on average, 400 at most."""
    times = ThrottleTimes()
    assert (times.average_ms(0.0), times.max_ms(0.0)) == (0, 0)
    for number, throttle_ms in enumerate((400, 100, 200, 300)):
        times.note(throttle_ms, 1_000_000.0 + number)
        times.answers += 1
    assert (times.average_ms(1_000_010.0), times.max_ms(1_000_010.0)) == (250, 400)
    times.answers += 1
    assert (times.average_ms(1_000_000.0 + SAMPLE_MS), times.max_ms(1_000_000.0 + SAMPLE_MS)) == (200, 400)
    assert (times.average_ms(1_000_000.0 + 2 * SAMPLE_MS), times.max_ms(1_000_000.0 + 2 * SAMPLE_MS)) == (
        0,
        0,
    )
