"""Goal: a failure that nobody foresaw, of a link's transport, owner or answer, costs that link and nothing else."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import pytest

from sidecar.net.kafka.connector import LinkError
from sidecar.protocol.init_producer_id import init_producer_id_request
from sidecar.protocol.messages import Buffer

from .conftest import Run
from .fake_broker import FakeBroker
from .links import NotingLinks, node_of, until
from .test_broker_link import answer_anything, produce

pytestmark = pytest.mark.usefixtures("spoken")


@pytest.mark.parametrize("buffers", [1, 1100], ids=["at once", "through the queue"])
def test_a_transport_that_fails_in_an_unforeseen_way_ends_its_link(
    run: Run, buffers: int, caplog: pytest.LogCaptureFixture
) -> None:
    """Nobody knows how many bytes have left: all buffers go back, none counts as surely unsent, and no byte follows."""

    async def test() -> None:
        async with FakeBroker(answer_anything) as broker:
            noting = NotingLinks()
            link = await noting.connect(node_of(broker.port))
            calls: list[int] = []
            taken: list[tuple[int, bool]] = []

            def fail(chunk: Sequence[Buffer]) -> int:
                calls.append(len(chunk))
                raise MemoryError("no room for a chunk")

            link._give = fail
            for n in (1, 2):
                message = produce(n, *[b"x"] * buffers)
                assert not link.send_buffers(n, message, lambda complete, n=n: taken.append((n, complete)))
                assert not link.is_closed, "never closed from inside a send"
            waiting = link.request(init_producer_id_request(4))
            await until(lambda: link.is_closed)
            assert (len(calls), taken, link.untouched_at_close) == (1, [(1, False), (2, False)], ())
            node_id, connected, reason = noting.states[-1]
            assert (node_id, connected) == (1, False)
            assert reason is not None and reason.endswith("failed: MemoryError: no room for a chunk")
            with pytest.raises(LinkError, match="MemoryError"):
                await waiting
            assert (await noting.connect(node_of(broker.port))).is_ready
            noting.links.close_all()

    run(test)
    assert any(record.exc_info for record in caplog.records), "its stack is in the log"


def test_an_owner_that_fails_at_the_end_of_a_link_costs_nothing_else(run: Run) -> None:
    """Every other buffer goes back, every request fails, and the broker can be connected to again."""

    async def test() -> None:
        async with FakeBroker(reads=False, receive_buffer_bytes=16 << 10) as broker:
            noting = NotingLinks(reconnect_backoff_ms=1.0)
            link = await noting.connect(node_of(broker.port))
            taken: list[int] = []

            def on_taken(complete: bool, n: int) -> None:
                taken.append(n)
                if n == 1:
                    raise RuntimeError("a bug of the owner")

            for n in range(3):
                link.send_buffers(n, produce(n, bytes(8 << 20)), partial(on_taken, n=n))
            waiting = link.request(init_producer_id_request(4))
            with pytest.raises(RuntimeError, match="a bug of the owner"):
                link.close("enough")
            assert taken == [0, 1, 2]
            with pytest.raises(LinkError, match="enough"):
                await waiting
            assert noting.states[-1] == (1, False, "enough")
            assert (await noting.connect(node_of(broker.port))).is_ready
            noting.links.close_all()

    run(test)


def test_an_answer_that_cannot_be_read_in_an_unforeseen_way_is_its_caller_s(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The caller would wait for ever: its request is answered, so no deadline ends it."""

    def fail(api_key: int, version: int, body: bytes) -> object:
        raise MemoryError

    async def test() -> None:
        async with FakeBroker(answer_anything) as broker:
            noting = NotingLinks()
            link = await noting.connect(node_of(broker.port))
            monkeypatch.setattr("sidecar.net.kafka.questions.decode_response", fail)
            with pytest.raises(MemoryError):
                await link.request(init_producer_id_request(4))
            noting.links.close_all()

    run(test)
