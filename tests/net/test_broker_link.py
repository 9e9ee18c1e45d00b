"""BrokerLink on real local sockets: partial writes, a peer that never reads, closing with bytes pending."""

from __future__ import annotations

import asyncio
import random
import re
import struct
from collections.abc import Callable

import pytest

from sidecar.net.kafka.connector import LinkError
from sidecar.protocol.init_producer_id import init_producer_id_request, parse_init_producer_id
from sidecar.protocol.messages import ApiKey, ProtocolError
from sidecar.protocol.produce import ProduceTopic, decode_produce_response, encode_produce

from .conftest import Run
from .fake_broker import FakeBroker, Peer, Request
from .links import NotingLinks, node_of, send_buffers, until

pytestmark = pytest.mark.usefixtures("spoken")

INIT_BODY_V4 = struct.pack(">ihqh", 0, 0, 4711, 3) + b"\0"
PRODUCE_BODY_V11 = (
    b"\x02"  # one topic
    + b"\x02t\x02"  # named t, one partition
    + struct.pack(">ihqqq", 0, 0, 42, -1, 0)
    + b"\x01\x00\x00"  # no record errors, no message, no tags
    + b"\x00"
    + struct.pack(">i", 0)
    + b"\x00"
)


async def answer_anything(peer: Peer, request: Request) -> None:
    body = INIT_BODY_V4 if request.api_key == ApiKey.INIT_PRODUCER_ID else PRODUCE_BODY_V11
    await peer.answer(request, body, flexible=True)


def produce(correlation_id: int, *records: bytes | memoryview) -> list[bytes | memoryview]:
    topics = [ProduceTopic("t", None, [(index, each) for index, each in enumerate(records)])]
    return encode_produce(11, correlation_id, "test", -1, 30_000, None, topics)


def test_negotiates_past_error_35_with_an_unreadable_body(run: Run) -> None:
    """An old broker answers a newer ApiVersions with error 35 and a body of another version: ask again with v0."""

    async def test() -> None:
        async with FakeBroker(answer_anything) as broker:
            noting = NotingLinks()
            link = await noting.connect(node_of(broker.port))
            assert [(each.api_key, each.version) for each in broker.requests] == [(18, 3), (18, 0)]
            assert link.version(ApiKey.PRODUCE) == 11
            assert link.version(ApiKey.METADATA) == 12
            assert link.version(ApiKey.DESCRIBE_PRODUCERS) is None
            assert noting.states == [(1, True, None)]
            result = parse_init_producer_id(await link.request(init_producer_id_request(4)))
            assert (result.error_code, result.identity) == (0, (4711, 3))
            noting.links.close_all()
            assert noting.states[1:] == [(1, False, None)]

    run(test)


def test_requests_and_answers_in_order(run: Run) -> None:
    async def test() -> None:
        async with FakeBroker(answer_anything) as broker:
            noting = NotingLinks()
            link = await noting.connect(node_of(broker.port))
            ids = [link.take_correlation_id() for _ in range(5)]
            taken: list[tuple[int, bool]] = []
            # A number taken early may be used late: compression runs beside the loop.
            order = [ids[1], ids[0], ids[4], ids[2], ids[3]]
            for correlation_id in order:
                send_buffers(
                    link,
                    correlation_id,
                    produce(correlation_id, b"x" * 100),
                    lambda complete, n=correlation_id: taken.append((n, complete)),
                )
            await until(lambda: len(noting.responses) == 5)
            assert [correlation_id for correlation_id, _ in noting.responses] == order
            assert taken == [(correlation_id, True) for correlation_id in order]
            response = decode_produce_response(11, noting.responses[0][1])
            assert (response.results[0].topic, response.results[0].base_offset) == ("t", 42)
            assert (link.in_flight_count, link.unsent_count) == (0, 0)
            noting.links.close_all()

    run(test)


def test_partial_writes_arrive_whole_and_buffers_are_told_free_in_order(run: Run) -> None:
    """More than the socket takes, over more than 1024 buffers: every byte once, on_taken only after the last."""

    async def test() -> None:
        rng = random.Random(1)
        async with FakeBroker(answer_anything, receive_buffer_bytes=16 << 10) as broker:
            noting = NotingLinks()
            link = await noting.connect(node_of(broker.port))
            taken: list[int] = []
            expected: list[bytes] = []
            for _ in range(6):
                correlation_id = link.take_correlation_id()
                storage = bytearray(rng.randbytes(600_000))
                view = memoryview(storage)
                sizes = sorted(rng.sample(range(1, 600_000), 1500))
                records = [
                    view[start:stop] for start, stop in zip([0, *sizes], [*sizes, 600_000], strict=True)
                ]
                buffers = produce(correlation_id, *records)
                assert len(buffers) > 1024
                expected.append(b"".join(buffers)[4:])

                def on_taken(complete: bool, storage: bytearray = storage, n: int = correlation_id) -> None:
                    assert complete
                    storage[:] = bytes(len(storage))  # used again at once: the kernel has its copy
                    taken.append(n)

                send_buffers(link, correlation_id, buffers, on_taken)
            assert link.unsent_count > 0, "this test needs a send that would block"
            await until(lambda: len(noting.responses) == 6)
            assert taken == [correlation_id for correlation_id, _ in noting.responses]
            assert [each.frame for each in broker.requests if each.api_key == 0] == expected
            noting.links.close_all()

    run(test)


def test_sending_and_closing_from_inside_on_taken(run: Run) -> None:
    """1. One sendmsg takes A whole and part of B. 2. A's owner sends C at once. B's bytes must not go twice."""

    async def test() -> None:
        async with FakeBroker(receive_buffer_bytes=64 << 10) as broker:
            noting = NotingLinks()
            link = await noting.connect(node_of(broker.port))
            rng = random.Random(3)
            messages = [
                b"".join(produce(n, rng.randbytes(size))) for n, size in enumerate([5 << 20, 50, 1 << 20, 70])
            ]
            later = [b"".join(produce(n + 4, rng.randbytes(40_000))) for n in range(4)]
            sent = list(messages)

            def on_taken(complete: bool) -> None:
                assert complete
                if later:
                    sent.append(later[0])
                    send_buffers(link, 50 - len(later), [later.pop(0)], on_taken, expect_response=False)

            for n, message in enumerate(messages):
                send_buffers(link, n, [message], on_taken, expect_response=False)
            assert link.unsent_count == len(messages)
            await until(lambda: len(broker.requests) == 2 + len(messages) + 4)
            assert [each.frame for each in broker.requests[2:]] == [message[4:] for message in sent]

            told: list[bool] = []
            send_buffers(
                link, 90, [messages[1]], lambda complete: link.close("enough"), expect_response=False
            )
            assert link.is_closed
            with pytest.raises(LinkError):
                send_buffers(link, 91, [messages[1]], told.append)
            assert not told

    run(test)


def test_close_with_bytes_pending_is_synchronous(run: Run) -> None:
    async def test() -> None:
        async with FakeBroker(reads=False, receive_buffer_bytes=16 << 10) as broker:
            noting = NotingLinks()
            link = await noting.connect(node_of(broker.port))
            taken: list[tuple[int, bool]] = []
            storage = bytearray(16 << 20)
            for n in range(3):
                send_buffers(
                    link,
                    100 + n,
                    produce(100 + n, memoryview(storage)),
                    lambda complete, n=n: taken.append((n, complete)),
                )
            waiting = link.request(init_producer_id_request(4))
            await asyncio.sleep(0)
            assert (taken, link.unsent_count, link._outgoing[0].is_untouched) == ([], 4, False)
            link.close("no byte taken for too long")
            assert taken == [(0, False), (1, False), (2, False)]
            assert link.untouched_at_close[:2] == (101, 102), "the first was partly sent: it may have arrived"
            assert noting.states[-1] == (1, False, "no byte taken for too long")
            storage.extend(b"x")  # BufferError if any view of it were still held by the link
            with pytest.raises(LinkError, match="no byte taken"):
                await waiting
            link.close("again")
            assert len(noting.states) == 2
            assert noting.links.link(1) is None

    # The test's own memoryviews must be gone for the extend above to prove anything.
    run(test)


def test_a_peer_that_never_reads_holds_up_nobody_else(run: Run) -> None:
    async def test() -> None:
        async with (
            FakeBroker(reads=False, receive_buffer_bytes=16 << 10) as mute,
            FakeBroker(answer_anything) as good,
        ):
            noting = NotingLinks()
            stuck = await noting.connect(node_of(mute.port, id=1))
            lively = await noting.connect(node_of(good.port, id=2))
            data = bytes(8 << 20)
            stuck.send_buffers(7, produce(7, data))
            for n in range(20):
                lively.send_buffers(n, produce(n, b"x" * 1000))
            await until(lambda: len(noting.responses) == 20)
            assert stuck.unsent_count == 1
            assert lively.stalled_since_ms is None
            stalled_ms = stuck.stalled_since_ms
            assert stalled_ms is not None
            stuck.send_buffers(8, produce(8, b"more"))
            assert stuck.stalled_since_ms == stalled_ms, "queueing more is no progress"
            noting.links.close_all()

    run(test)


@pytest.mark.rule("S5")
def test_an_answer_overdue_closes_the_link_and_fails_what_was_in_flight(run: Run) -> None:
    async def never(peer: Peer, request: Request) -> None:
        return

    async def test() -> None:
        async with FakeBroker(never) as broker:
            noting = NotingLinks(request_timeout_ms=150.0)
            link = await noting.connect(node_of(broker.port))
            link.send_buffers(50, produce(50, b"x"))  # its sender watches this one
            waiting = link.request(init_producer_id_request(4))
            with pytest.raises(LinkError, match="did not answer INIT_PRODUCER_ID within the request timeout"):
                await waiting
            assert link.is_closed
            assert noting.states[-1][:2] == (1, False)
            assert noting.links.next_attempt_delay_ms(1, noting.links._clock.now_ms()) > 0
            link = await noting.connect(node_of(broker.port))
            link.send_buffers(51, produce(51, b"x"), deadline_ms=noting.links._clock.now_ms() + 100)
            await until(lambda: link.is_closed)
            assert "did not answer PRODUCE" in (noting.states[-1][2] or "")

    run(test)


@pytest.mark.parametrize("is_over", [False, True], ids=["beside A", "after A's timer"])
def test_a_later_deadline_is_watched_although_it_sets_no_timer(run: Run, is_over: bool) -> None:
    """A's deadline sets the timer, and A is answered. B's deadline is later, so that timer serves it, too; unless it is
    over when B is sent."""
    is_silent = False

    async def answer(peer: Peer, request: Request) -> None:
        if not is_silent:
            await answer_anything(peer, request)

    async def test() -> None:
        nonlocal is_silent
        async with FakeBroker(answer) as broker:
            noting = NotingLinks()
            link = await noting.connect(node_of(broker.port))
            now_ms = noting.links._clock.now_ms()
            assert link.send_buffers(0, produce(0, b"x"), deadline_ms=now_ms + 150)
            await until(lambda: len(noting.responses) == 1)
            is_silent = True
            if is_over:
                await until(lambda: noting.links._timer_at_ms > now_ms + 150)
            assert link.send_buffers(1, produce(1, b"x"), deadline_ms=now_ms + 300)
            await until(lambda: link.is_closed)
            assert "did not answer PRODUCE within" in (noting.states[-1][2] or "")

    run(test)


def test_a_request_that_the_kernel_takes_at_once_is_never_queued(run: Run) -> None:
    """Its sender has its buffers back when the call returns; only one that waits is reported later."""

    async def test() -> None:
        async with FakeBroker(reads=False, receive_buffer_bytes=16 << 10) as broker:
            noting = NotingLinks()
            link = await noting.connect(node_of(broker.port))
            taken: list[tuple[int, bool]] = []
            storage = bytearray(1000)
            is_taken = [
                link.send_buffers(
                    n, produce(n, memoryview(each)), lambda complete, n=n: taken.append((n, complete))
                )
                for n, each in enumerate([storage, bytearray(16 << 20), b"behind it"])
            ]
            assert (is_taken, taken, link.unsent_count) == ([True, False, False], [], 2)
            storage.extend(b"x")  # BufferError if the link still held a view of it
            link.close("enough")
            assert taken == [(1, False), (2, False)]

    run(test)


async def _hang_up(peer: Peer, request: Request) -> None:
    peer.close()


async def _wrong_id(peer: Peer, request: Request) -> None:
    await peer.answer(request._replace(correlation_id=request.correlation_id + 1), b"")


async def _huge_frame(peer: Peer, request: Request) -> None:
    await peer.send(b"HTTP/1.1 400 Bad Request\r\n\r\n")


async def _unasked(peer: Peer, request: Request) -> None:
    await answer_anything(peer, request)
    await answer_anything(peer, request)


@pytest.mark.parametrize(
    ("handler", "text"),
    [
        (_hang_up, "closed the connection|Reading from .* failed"),
        (_wrong_id, "answered correlation id"),
        (_huge_frame, "is this a Kafka port"),
        (_unasked, "nobody asked for"),
    ],
)
def test_a_broken_stream_ends_the_link_with_a_sentence(
    run: Run, handler: Callable[[Peer, Request], object], text: str
) -> None:
    async def test() -> None:
        async with FakeBroker(handler) as broker:  # type: ignore[arg-type]
            noting = NotingLinks()
            link = await noting.connect(node_of(broker.port))
            link.send_buffers(9, produce(9, b"x"))
            await until(lambda: link.is_closed)
            node, is_ready, reason = noting.states[-1]
            assert (node, is_ready) == (1, False)
            assert re.search(text, reason or "")

    run(test)


def test_a_peer_that_dies_while_we_send(run: Run) -> None:
    """Found inside send or by the writer: told once, in a turn of its own, every buffer given back."""

    async def test() -> None:
        async with FakeBroker(reads=False, receive_buffer_bytes=16 << 10) as broker:
            noting = NotingLinks()
            link = await noting.connect(node_of(broker.port))
            taken: list[tuple[int, bool]] = []
            data = bytes(8 << 20)
            send_buffers(link, 1, produce(1, data), lambda complete: taken.append((1, complete)))
            broker.peers[0].close()
            for n in range(2, 6):
                if not link.is_ready:
                    break
                send_buffers(link, n, produce(n, data), lambda complete, n=n: taken.append((n, complete)))
                assert not link.is_closed, "never closed from inside a send"
                await asyncio.sleep(0)
            await until(lambda: link.is_closed)
            assert taken == [(n, False) for n in range(1, len(taken) + 1)]
            assert [state[:2] for state in noting.states] == [(1, True), (1, False)]
            assert noting.states[-1][2]

    run(test)


def test_an_unreadable_answer_fails_its_request_only(run: Run) -> None:
    bodies = [b"\x01", INIT_BODY_V4]

    async def handler(peer: Peer, request: Request) -> None:
        await peer.answer(request, bodies.pop(0), flexible=True)

    async def test() -> None:
        async with FakeBroker(handler) as broker:
            noting = NotingLinks()
            link = await noting.connect(node_of(broker.port))
            with pytest.raises(ProtocolError, match="INIT_PRODUCER_ID v4 cannot be read"):
                await link.request(init_producer_id_request(4))
            assert parse_init_producer_id(await link.request(init_producer_id_request(4))).error_code == 0
            noting.links.close_all()

    bodies[:] = [b"\x01", INIT_BODY_V4]
    run(test)


def test_sending_on_a_dead_link_is_an_error_that_says_so(run: Run) -> None:
    async def test() -> None:
        async with FakeBroker(answer_anything) as broker:
            noting = NotingLinks()
            link = await noting.connect(node_of(broker.port))
            link.close(None)
            with pytest.raises(LinkError, match="not ready"):
                link.send_buffers(1, produce(1, b"x"))
            with pytest.raises(LinkError, match="not ready"):
                await link.request(init_producer_id_request(4))

    run(test)


def test_acks_0_waits_for_no_answer(run: Run) -> None:
    async def ignore(peer: Peer, request: Request) -> None:
        if request.api_key == ApiKey.INIT_PRODUCER_ID:
            await answer_anything(peer, request)

    async def test() -> None:
        async with FakeBroker(ignore) as broker:
            noting = NotingLinks()
            link = await noting.connect(node_of(broker.port))
            taken: list[bool] = []
            send_buffers(link, 60, produce(60, b"x"), taken.append, expect_response=False)
            assert link.in_flight_count == 0
            await link.request(init_producer_id_request(4))
            assert taken == [True]
            noting.links.close_all()

    run(test)
