"""Goal: a login is renewed with nothing outstanding, and what waited meanwhile goes out in order (SE-03)."""

from __future__ import annotations

import asyncio
import struct
import subprocess
import sys
from typing import Any

import pytest

from sidecar.common.control import LoginToken
from sidecar.net.kafka.authentication import Authenticator
from sidecar.protocol.connection import SETUP_ANSWER_BYTES_MAX
from sidecar.protocol.init_producer_id import init_producer_id_request, parse_init_producer_id
from sidecar.protocol.messages import ApiKey
from sidecar.protocol.produce import ProduceTopic, encode_produce
from sidecar.protocol.sasl.credentials import token_fingerprint

from .conftest import Run
from .fake_broker import FakeBroker, Peer, Request, api_versions_body
from .links import NotingLinks, node_of, send_buffers, until

VALUES = {"sasl.mechanism": "PLAIN", "sasl.username": "alice", "sasl.password": "s3cret"}
LIFETIME_MS = 400
INIT_BODY_V4 = struct.pack(">ihqh", 0, 0, 4711, 3) + b"\0"


@pytest.fixture(autouse=True)
def renewals_as_often_as_sessions_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """Sessions are short here for the sake of time."""
    monkeypatch.setattr("sidecar.protocol.sasl.session.RENEWAL_MS_MIN", 0.0)


class SaslBroker(FakeBroker):
    """Sessions of 400 ms. It notes what overlaps: a login request while an answer is owed, or a request outside."""

    def __init__(self, **options: Any) -> None:
        super().__init__(self._handle, on_api_versions=self._versions, **options)
        self.logins = 0
        self.owed = 0
        self.overlaps: list[int] = []
        self.order: list[int] = []
        self.answer_after_s = 0.0
        self.refuses = False
        self._answers: set[asyncio.Task[None]] = set()

    async def _versions(self, peer: Peer, request: Request) -> None:
        if request.version:
            await peer.answer(request, struct.pack(">h", 35))
            return
        rows = ((0, 3, 8), (17, 1, 1), (18, 0, 0), (22, 0, 4), (36, 1, 1))
        await peer.answer(request, api_versions_body(*rows))

    async def _handle(self, peer: Peer, request: Request) -> None:
        match request.api_key:
            case ApiKey.SASL_HANDSHAKE:
                if self.owed:
                    self.overlaps.append(request.correlation_id)
                await peer.answer(request, struct.pack(">hi", 0, 0))
            case ApiKey.SASL_AUTHENTICATE:
                if self.owed:
                    self.overlaps.append(request.correlation_id)
                self.logins += 1
                code = 58 if self.refuses else 0
                await peer.answer(request, struct.pack(">hhiq", code, -1, 0, LIFETIME_MS))
            case ApiKey.PRODUCE:
                self.order.append(request.correlation_id)  # acks=0: nobody answers
            case _:
                self.owed += 1
                self.order.append(request.correlation_id)
                task = asyncio.create_task(self._answer_later(peer, request))
                self._answers.add(task)

    async def _answer_later(self, peer: Peer, request: Request) -> None:
        await asyncio.sleep(self.answer_after_s)
        self.owed -= 1
        await peer.answer(request, INIT_BODY_V4, flexible=True)


def produce(correlation_id: int) -> list[Any]:
    return encode_produce(
        8, correlation_id, "test", 0, 30_000, None, [ProduceTopic("t", None, [(0, b"records")])]
    )


def test_requests_wait_for_the_renewal_and_keep_their_order(run: Run) -> None:
    """Under requests with answers that take 60 ms, and acks=0 between them, over five sessions."""

    async def test() -> None:
        async with SaslBroker() as broker:
            noting = NotingLinks(authenticator=Authenticator(VALUES))
            link = await noting.connect(node_of(broker.port))
            broker.answer_after_s = 0.06
            answers: list[asyncio.Future[Any]] = []
            sent: list[int] = []
            while broker.logins < 5:
                answers.append(link.request(init_producer_id_request(4)))
                correlation_id = link.take_correlation_id()
                sent += [correlation_id - 1, correlation_id]
                link.send_buffers(correlation_id, produce(correlation_id), expect_response=False)
                await asyncio.sleep(0.01)
            for answer in answers:
                assert parse_init_producer_id(await answer).error_code == 0
            await until(lambda: len(broker.order) == len(sent))
            assert not broker.overlaps
            assert broker.order == sorted(broker.order), "in order, logins between them"
            assert len(broker.peers) == 1 and noting.states == [(1, True, None)]
            noting.links.close_all()

    run(test)


def test_an_idle_link_is_renewed_and_counts_as_idle(run: Run) -> None:
    async def test() -> None:
        async with SaslBroker() as broker:
            noting = NotingLinks(authenticator=Authenticator(VALUES), connections_max_idle_ms=900)
            await noting.connect(node_of(broker.port))
            await until(lambda: noting.states[1:] == [(1, False, None)])
            assert broker.logins > 1

    run(test)


def test_a_refused_renewal_closes_the_link_with_the_cause(run: Run) -> None:
    """Held requests were surely not sent, and their owner hears so."""

    async def test() -> None:
        async with SaslBroker() as broker:
            noting = NotingLinks(authenticator=Authenticator(VALUES))
            link = await noting.connect(node_of(broker.port))
            broker.refuses, broker.answer_after_s = True, 0.2
            taken: list[bool] = []
            held: list[int] = []

            def send_while_it_holds() -> bool:
                if link.is_closed:
                    return True
                link.request(init_producer_id_request(4)).add_done_callback(lambda done: done.exception())
                held.append(link.take_correlation_id())
                send_buffers(link, held[-1], produce(held[-1]), taken.append, expect_response=False)
                return False

            await until(send_while_it_holds)
            ((node_id, connected, error),) = noting.states[1:]
            assert (node_id, connected) == (1, False)
            assert (
                error is not None and 'sasl.mechanism PLAIN, user "alice"' in error and "s3cret" not in error
            )
            assert noting.links.is_refused(1)
            assert len(taken) == len(held) and taken[-1] is False
            assert held[-1] in link.untouched_at_close

    run(test)


@pytest.mark.parametrize("kind", [ApiKey.INIT_PRODUCER_ID, ApiKey.PRODUCE])
def test_a_held_request_does_not_outlive_its_timeout(run: Run, kind: ApiKey) -> None:
    """The broker takes the renewal and does not answer it: the login itself may take request.timeout.ms (30 s)."""

    class Slow(SaslBroker):
        is_renewing = False

        async def _handle(self, peer: Peer, request: Request) -> None:
            if request.api_key == ApiKey.SASL_HANDSHAKE and self.logins:
                self.is_renewing = True
            else:
                await super()._handle(peer, request)

    async def test() -> None:
        async with Slow() as broker:
            noting = NotingLinks(authenticator=Authenticator(VALUES))
            link = await noting.connect(node_of(broker.port))
            await until(lambda: broker.is_renewing)
            taken: list[bool] = []
            if kind == ApiKey.PRODUCE:
                now_ms = noting.links._clock.now_ms()
                link.send_buffers(
                    link.take_correlation_id(), produce(1), taken.append, deadline_ms=now_ms + 100
                )
            else:
                link.request(init_producer_id_request(4), timeout_ms=100).add_done_callback(
                    lambda done: taken.append(done.exception() is None)
                )
            assert link.in_flight_count > link.awaited_count, "it is held"
            assert noting.links.stalled_since_ms(1) is not None, (
                "its request buffer is one that others may wait for"
            )
            await until(lambda: taken == [False])
            assert noting.states[-1] == (
                1,
                False,
                f"{link.node}: the login was not renewed within the timeout of a request that waited for it.",
            )
            assert not noting.links.is_refused(1), "it may be connected to again soon"

    run(test)


def test_a_link_that_fails_does_not_end_the_task_that_brings_new_credentials(run: Run) -> None:
    """The controller's task that fetches tokens would end, and nobody would fetch another one."""

    async def test() -> None:
        seen: list[str] = []
        asyncio.get_running_loop().set_exception_handler(
            lambda _, context: seen.append(str(context["exception"]))
        )

        def fail(now_ms: float) -> None:
            raise RuntimeError("a bug")

        async with SaslBroker() as broker:
            authenticator = Authenticator(VALUES)
            noting = NotingLinks(authenticator=authenticator)
            link = await noting.connect(node_of(broker.port))
            link.check_deadlines = fail  # type: ignore[method-assign]
            authenticator.change(VALUES)
            await until(lambda: link.is_closed)
            assert seen == ["a bug"]
            noting.links.close_all()

    run(test)


def test_an_owner_that_sends_from_on_taken_does_not_overtake_what_is_held(run: Run) -> None:
    async def test() -> None:
        async with SaslBroker() as broker:
            noting = NotingLinks(authenticator=Authenticator(VALUES))
            link = await noting.connect(node_of(broker.port))
            broker.answer_after_s = 0.2
            late: list[int] = []

            def send_more(complete: bool) -> None:
                assert complete
                if not late:
                    late.append(link.take_correlation_id())
                    link.send_buffers(late[0], produce(late[0]), expect_response=False)

            def holds() -> bool:
                link.request(init_producer_id_request(4))
                return link.in_flight_count > link.awaited_count

            await until(holds)
            for _ in range(3):
                correlation_id = link.take_correlation_id()
                send_buffers(link, correlation_id, produce(correlation_id), send_more, expect_response=False)
            await until(lambda: bool(late) and broker.order[-1] >= late[0] and not link.in_flight_count)
            assert broker.order == sorted(broker.order)
            noting.links.close_all()

    run(test)


def test_a_renewal_that_fails_in_a_way_nobody_foresaw_closes_the_link(run: Run) -> None:
    """Else what is held would wait for ever: nothing of it has a deadline yet."""

    class Once(Authenticator):
        logins = 0

        async def log_in(self, *given: Any) -> float:
            self.logins += 1
            if self.logins > 1:
                raise RecursionError("deep inside an answer")
            return await super().log_in(*given)

    async def test() -> None:
        async with SaslBroker() as broker:
            noting = NotingLinks(authenticator=Once(VALUES))
            await noting.connect(node_of(broker.port))
            await until(lambda: len(noting.states) == 2)
            ((_, connected, error),) = noting.states[1:]
            assert not connected and error is not None
            assert error.endswith("renewing the login failed (RecursionError).")
            assert noting.links.is_refused(1), "and the next attempt waits"

    run(test)


TOKEN_VALUES = {"sasl.mechanism": "OAUTHBEARER"}


@pytest.mark.parametrize("refuses", [True, False])
def test_a_token_that_a_broker_refuses_is_reported_by_its_fingerprint(run: Run, refuses: bool) -> None:
    """Only a token is, and only where the broker has seen it: a handshake that is refused says nothing about it."""

    class Mechanisms(SaslBroker):
        async def _handle(self, peer: Peer, request: Request) -> None:
            if request.api_key == ApiKey.SASL_HANDSHAKE and not self.refuses:
                await peer.answer(request, struct.pack(">hi", 33, 0))
            else:
                await super()._handle(peer, request)

    async def test() -> None:
        async with Mechanisms() as broker:
            broker.refuses = refuses
            reported: list[bytes] = []
            for values in (VALUES, TOKEN_VALUES):
                authenticator = Authenticator(values)
                authenticator.put_token(LoginToken("refused", None))
                authenticator.on_token_refused = reported.append
                noting = NotingLinks(authenticator=authenticator)
                noting.links.ready(node_of(broker.port))
                await until(lambda noting=noting: len(noting.states) == 1)  # type: ignore[misc]
                assert noting.links.is_refused(1)
                noting.links.close_all()
            assert reported == ([token_fingerprint("refused")] if refuses else [])

    run(test)


@pytest.mark.parametrize("is_good_one_there", [False, True])
def test_a_refused_login_is_said_once(
    run: Run, caplog: pytest.LogCaptureFixture, is_good_one_there: bool
) -> None:
    async def test() -> None:
        async with SaslBroker() as good, SaslBroker() as bad:
            bad.refuses = True
            noting = NotingLinks(authenticator=Authenticator(VALUES), logs_first_refusal=True)
            if is_good_one_there:
                await noting.connect(node_of(good.port, id=2))
            noting.links.ready(node_of(bad.port))
            await until(lambda: (1, False) in [each[:2] for each in noting.states])
            noting.links.ready(node_of(bad.port, id=3))
            await until(lambda: (3, False) in [each[:2] for each in noting.states])
            noting.links.close_all()

    with caplog.at_level("WARNING"):
        run(test)
    assert len([line for line in caplog.messages if "the login is refused" in line]) == 1 + is_good_one_there


@pytest.mark.slow
def test_a_process_without_sasl_imports_nothing_of_it() -> None:
    code = (
        "import sys, sidecar.worker.worker, sidecar.controller.cluster.cluster; "
        "ours = ('protocol.sasl', 'sasl_rules', 'scramp', 'net.authentication', 'controller.token'); "
        "print([each for each in sys.modules if any(name in each for name in ours)])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


@pytest.mark.parametrize("closes_at", [ApiKey.SASL_HANDSHAKE, ApiKey.SASL_AUTHENTICATE])
def test_a_broker_that_hangs_up_during_the_login(run: Run, closes_at: ApiKey) -> None:
    class Rude(SaslBroker):
        async def _handle(self, peer: Peer, request: Request) -> None:
            if request.api_key == closes_at:
                peer.close()
            else:
                await super()._handle(peer, request)

    async def test() -> None:
        async with Rude() as broker:
            noting = NotingLinks(authenticator=Authenticator(VALUES))
            noting.links.ready(node_of(broker.port))
            await until(lambda: len(noting.states) == 1)
            ((_, connected, error),) = noting.states
            assert not connected and error is not None and "closed" in error
            noting.links.close_all()

    run(test)


def test_an_answer_to_the_login_that_is_too_long(run: Run) -> None:
    """The peer has not shown yet that it is a broker: nothing of it is kept."""

    class Long(SaslBroker):
        async def _handle(self, peer: Peer, request: Request) -> None:
            if request.api_key == ApiKey.SASL_AUTHENTICATE:
                await peer.send(struct.pack(">ii", SETUP_ANSWER_BYTES_MAX + 1, request.correlation_id))
            else:
                await super()._handle(peer, request)

    async def test() -> None:
        async with Long() as broker:
            noting = NotingLinks(authenticator=Authenticator(VALUES))
            noting.links.ready(node_of(broker.port))
            await until(lambda: len(noting.states) == 1)
            ((_, connected, error),) = noting.states
            assert not connected and error is not None and "a frame of 1048577 bytes" in error
            noting.links.close_all()

    run(test)
