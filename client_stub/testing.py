"""FakeProducer and FakeAsyncProducer: producers for an application's tests, without a daemon and Kafka.

An application's tests import it.

::

    from client_stub.testing import FakeProducer

    def test_an_order_is_announced():
        producer = FakeProducer()
        place_order(producer)
        assert [record.value for record in producer.records] == [b"order 1"]

The fixtures ``fake_producer`` and ``fake_async_producer`` come with ``pytest_plugins = ["client_stub.testing"]``. Only
they need pytest.
"""

from __future__ import annotations

from collections.abc import Iterator

from client_stub.fakes.fake_async_producer import FakeAsyncProducer
from client_stub.fakes.fake_producer import FakeProducer
from client_stub.fakes.memory_daemon import FailWith, FakeRecord

__all__ = ["FailWith", "FakeAsyncProducer", "FakeProducer", "FakeRecord"]

try:
    import pytest
except ImportError:
    pass
else:

    @pytest.fixture
    def fake_producer() -> Iterator[FakeProducer]:
        """A FakeProducer that is closed when the test ends."""
        with FakeProducer() as producer:
            yield producer

    @pytest.fixture
    def fake_async_producer() -> Iterator[FakeAsyncProducer]:
        """A FakeAsyncProducer that releases its held records when the test ends."""
        producer = FakeAsyncProducer()
        yield producer
        producer.release()
