"""The session as a pure state machine: a model worker, random faults, and what must hold after each run."""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable
from itertools import pairwise
from math import inf
from typing import Any

import msgpack
import pytest

from client_stub.contract.wire import Kind, Outcome, OutcomeKind, Shape, SubmitFlag, pack_outcome
from client_stub.errors import DaemonLost
from client_stub.outbox.outbox import Outbox
from client_stub.outbox.submission import Submission
from client_stub.session.attachment import PINGS_UNANSWERED_MAX
from client_stub.session.client_identity import ClientIdentity
from client_stub.session.effects import CloseSockets, OpenControl, OpenWorker
from client_stub.session.session import ACK_DELAY_MS, ACK_OUTCOMES_MAX, Session
from client_stub.session.states import State

TOPICS = ("a", "b", "c")
MANY_TOPICS = tuple("abcdefgh")
STREAMS_MAX = 3
"""So many streams of its client does a model worker keep that ends streams."""


class ModelWorker:
    """Positions, a journal per stream, a ring; no sockets. ``forget`` loses its memory of the client."""

    def __init__(self, rng: random.Random, streams_max: int | None) -> None:
        self.rng = rng
        self.streams_max = streams_max
        self.ended: set[int] = set()
        self.epoch = 1
        self.secret: bytes | None = None
        self.positions: dict[int, int] = {}
        self.awaited: dict[int, int] = {}
        self.topics: dict[int, str] = {}
        self.held: set[int] = set()
        self.journal: list[tuple[int, int, bytes]] = []
        self.log: list[tuple[str, bytes]] = []
        """Records of the broker: (topic, payload), in order of delivery."""
        self.wake: list[tuple[int, bytes]] = []
        self.number = 1
        self.accepted_bytes = 0
        self.window_bytes = 60
        self.told_number = 0
        self.loss = 0.1
        self.unopened: set[int] = set()

    def forget(self) -> None:
        self.secret = None
        for memory in (self.positions, self.topics, self.journal, self.wake, self.held):
            memory.clear()
        self.number = 1

    def welcome(self, secret: bytes | None) -> list[Any]:
        known = self.secret is not None and secret is not None
        if self.secret is None:
            self.secret = b"s%d" % self.rng.randrange(1 << 30)
        self.accepted_bytes = self.told_number = 0
        self.awaited.clear()
        self.unopened.clear()
        streams = [[s, self.topics[s], p, s in self.held] for s, p in self.positions.items()]
        limits = {} if self.streams_max is None else {"streams": self.streams_max}
        return [Kind.WELCOME, self.epoch, self.secret, known, self.window_bytes, limits, streams]

    def acked(self, up_to_number: int) -> None:
        self.wake = [(number, data) for number, data in self.wake if number > up_to_number]

    def submit(self, message: list[Any], payload: bytes) -> list[list[Any]]:
        _, epoch, stream, seq, topic, *_ = message
        if epoch != self.epoch:
            return [[Kind.HELLO_AGAIN, self.epoch]]
        if stream not in self.positions and self.streams_max is not None:
            assert stream not in self.ended, "a number is used once"
            if seq != 1:
                is_new = stream not in self.unopened
                self.unopened.add(stream)
                return [[Kind.RESEND, stream, 1]] if is_new else []
            assert len(self.positions) < self.streams_max, "the stub knows how many there may be"
            if self.rng.random() < 0.2:
                self.unopened.add(stream)
                return [[Kind.REFUSED, "TOPIC_TABLE_FULL", "full", stream]]
        self.unopened.discard(stream)
        self.topics[stream] = topic
        expected = self.positions.get(stream, 0) + 1
        self.positions.setdefault(stream, 0)
        if seq < expected:
            return [self.acceptance([stream])]
        if seq > expected:
            if stream in self.held or self.awaited.get(stream) == expected:
                return []
            self.awaited[stream] = expected
            return [[Kind.RESEND, stream, expected]]
        if stream in self.held:
            return []
        if self.rng.random() < 0.15:
            self.held.add(stream)
            return [[Kind.HOLD, stream, seq, "full"]]
        if self.rng.random() < self.loss:
            return []  # lost on the way; the next one will be answered with RESEND
        self.awaited.pop(stream, None)
        self.positions[stream] = seq
        self.journal.append((stream, seq, payload))
        self.accepted_bytes += len(payload)
        return [self.acceptance([stream])]

    def end(self, stream: int, last_seq: int) -> None:
        if stream not in self.positions or stream in self.held:
            return
        assert self.positions[stream] == last_seq
        assert all(each != stream for each, _, _ in self.journal), "all its records have their outcomes"
        del self.positions[stream]
        self.awaited.pop(stream, None)
        self.ended.add(stream)

    def acceptance(self, streams: list[int]) -> list[Any]:
        credit = self.accepted_bytes + self.window_bytes
        return [Kind.ACCEPTED, credit, [[s, self.positions[s]] for s in streams]]

    def resume(self) -> list[list[Any]]:
        messages: list[list[Any]] = []
        for stream in sorted(self.held):
            self.awaited[stream] = self.positions[stream] + 1
            messages.append([Kind.RESUME, stream, self.positions[stream] + 1])
        self.held.clear()
        return messages

    def deliver(self) -> None:
        """Records in the journal reach the broker; their outcomes stand in the ring."""
        for stream, seq, payload in self.journal:
            self.log.append((self.topics[stream], payload))
            outcome = Outcome(
                OutcomeKind.DELIVERED, 2, Shape.RANGE, self.number, stream, 0, seq, 0, 0, 1, len(self.log), -1, b"", ""
            )  # fmt: skip
            self.wake.append((self.number, pack_outcome(outcome)))
            self.number += 1
        self.journal.clear()

    def news(self) -> tuple[list[Any], bytes] | None:
        """The outcomes not told on this connection, in order, as a real worker reads its ring."""
        untold = [(number, data) for number, data in self.wake if number > self.told_number]
        if not untold:
            return None
        self.told_number = untold[-1][0]
        message = [Kind.OUTCOMES, untold[0][0], untold[-1][0]]
        if self.rng.random() < 0.5:  # positions may travel with outcomes
            message += self.acceptance(list(self.positions))[1:]
        return message, b"".join(data for _, data in untold)


class Run:
    """A session and a model worker, joined by a wire that a seeded hand cuts."""

    def __init__(
        self,
        seed: int,
        *,
        topics: tuple[str, ...] = TOPICS,
        streams_max: int | None = None,
        make_session: Callable[..., Session] = Session,
    ) -> None:
        self.rng = random.Random(seed)
        self.topics = topics
        self.worker = ModelWorker(self.rng, streams_max)
        self.session = make_session(
            ClientIdentity(name="x", pid=1, fork_generation=0, token=None), delivery_timeout_ms=1e9
        )
        self.outbox = Outbox(max_block_ms=0, connect_timeout_ms=0, path="/nowhere")
        self.now_ms = 0.0
        self.made: list[tuple[str, bytes, list[Any]]] = []
        self.attached = False
        self.session.wake(self.now_ms)

    def add(self) -> None:
        topic = self.rng.choice(self.topics)
        payload = b"%s-%04d" % (topic.encode(), len(self.made))
        submission = Submission(self.outbox.waiters, topic, None, 0, 0)
        submission.count = 1
        submission.flags = SubmitFlag.WANT_INDEXES
        told: list[Any] = []
        submission.callback = lambda error, metadata: told.append(error)
        submission.seal(payload)
        self.made.append((topic, payload, told))
        self.session.add([submission], self.now_ms)

    def tell(self, message: list[Any], *frames: bytes) -> None:
        if self.attached:
            self.session.receive_worker([msgpack.packb(message), *frames], self.now_ms)
            self.act()

    def tell_news(self) -> None:
        news = self.worker.news() if self.attached else None
        if news is not None:
            self.tell(*news)

    def act(self) -> None:
        for effect in self.session.attachment.take_effects():
            match effect:
                case OpenControl(_):
                    assigned = [Kind.ASSIGNED, "worker", self.worker.epoch, b"t"]
                    self.session.receive_control([msgpack.packb(assigned)], self.now_ms)
                    self.act()
                case OpenWorker(_, frames):
                    self.attached = True
                    secret = msgpack.unpackb(frames[0])[7]
                    self.tell(self.worker.welcome(secret))
                    self.tell_news()
                case CloseSockets():
                    self.attached = False

    def ship(self, most: int = 1000) -> None:
        for _ in range(most):
            frames = self.session.next_frames()
            if frames is None:
                return
            message = msgpack.unpackb(frames[0])
            if (
                message[0] == Kind.END_STREAM and self.rng.random() < 0.2
            ):  # the worker dies before it reads it
                self.cut(forget=False)
                return
            self.arrive(message, bytes(frames[1]) if len(frames) > 1 else b"")

    def arrive(self, message: list[Any], payload: bytes) -> None:
        """The worker handles a message."""
        if message[0] == Kind.SUBMIT:
            self.worker.acked(message[9])
            for answer in self.worker.submit(message, payload):
                self.tell(answer)
        elif message[0] == Kind.ACK:
            self.worker.acked(message[1])
        elif message[0] == Kind.END_STREAM:
            self.worker.end(*message[1:])

    def cut(self, *, forget: bool) -> None:
        """The worker dies; its successor has the journal, unless ``forget``."""
        self.worker.epoch += 1
        if forget:
            self.worker.forget()
        self.session.lost("the daemon closed it", self.now_ms)
        self.act()

    def restart(self) -> None:
        """A clean stop: all accepted is delivered and told, then the last word; the successor knows nobody."""
        self.worker.deliver()
        self.tell_news()
        self.tell([Kind.DRAINING, "bye", [[stream, at] for stream, at in self.worker.positions.items()]])
        self.cut(forget=True)

    def pass_time(self, ms: float) -> None:
        self.now_ms += ms
        self.session.tick(self.now_ms)
        self.act()

    def step(self, forgets: float) -> None:
        chance = self.rng.random()
        if chance < 0.35:
            self.add()
        elif chance < 0.65:
            self.ship(self.rng.randrange(1, 5))
        elif chance < 0.75:
            self.worker.deliver()
            if self.rng.random() < 0.8:  # else they stand in the ring when the worker dies
                self.tell_news()
        elif chance < 0.85:
            for message in self.worker.resume():
                self.tell(message)
        elif chance < 0.9:
            self.cut(forget=self.rng.random() < forgets)
        else:
            self.pass_time(self.rng.choice((1, 30, 2000)))

    def finish(self) -> None:
        for turn in range(200):
            if turn % 5 == 4:
                self.cut(forget=False)  # what a wire has swallowed comes out at the next WELCOME
            self.pass_time(2_000)
            for message in self.worker.resume():
                self.tell(message)
            self.ship()
            self.worker.deliver()
            self.tell_news()
            if not self.session.streams.undecided:
                return
        pytest.fail("something was never decided")

    def check_all_is_delivered_in_order(self) -> None:
        for topic in self.topics:
            made = [payload for name, payload, _ in self.made if name == topic]
            assert [payload for name, payload in self.worker.log if name == topic] == made
        assert all(told == [None] for _, _, told in self.made)


class SlowRun(Run):
    """As Run, but messages take their time in both directions: each end acts on what it knows meanwhile. A frame is
    lost only with its connection.
    """

    def __init__(self, seed: int, **options: Any) -> None:
        self.up: deque[tuple[list[Any], bytes]] = deque()
        self.down: deque[tuple[list[Any], bytes | None]] = deque()
        super().__init__(seed, **options)
        self.worker.loss = 0.0

    def tell(self, message: list[Any], *frames: bytes) -> None:
        if message[0] == Kind.WELCOME:
            super().tell(message, *frames)
        elif self.attached:
            self.down.append((message, frames[0] if frames else None))

    def ship(self, most: int = 1000) -> None:
        for _ in range(most):
            frames = self.session.next_frames()
            if frames is None:
                break
            self.up.append((msgpack.unpackb(frames[0]), bytes(frames[1]) if len(frames) > 1 else b""))
        for _ in range(self.rng.randrange(most + 1)):
            if self.up:
                self.arrive(*self.up.popleft())
        for _ in range(self.rng.randrange(most + 1)):
            if self.down:
                message, data = self.down.popleft()
                super().tell(message, *(() if data is None else (data,)))

    def cut(self, *, forget: bool) -> None:
        self.up.clear()
        self.down.clear()
        super().cut(forget=forget)

    def restart(self) -> None:
        self.worker.deliver()
        self.tell_news()
        self.tell([Kind.DRAINING, "bye", [[stream, at] for stream, at in self.worker.positions.items()]])
        while self.down:
            message, data = self.down.popleft()
            super().tell(message, *(() if data is None else (data,)))
        self.cut(forget=True)


@pytest.mark.parametrize("seed", range(150))
def test_nothing_is_lost_doubled_or_reordered_across_worker_deaths(seed: int) -> None:
    run = Run(seed)
    for _ in range(120):
        run.step(forgets=0.0)
    run.finish()
    run.check_all_is_delivered_in_order()
    assert run.session.attachment.state is State.ATTACHED


@pytest.mark.parametrize("forgets", [False, True], ids=["", "restarts"])
@pytest.mark.parametrize("seed", range(150))
def test_more_topics_than_streams_take_turns_and_nothing_is_lost_doubled_or_reordered(
    seed: int, forgets: bool
) -> None:
    run = Run(seed, topics=MANY_TOPICS, streams_max=STREAMS_MAX)
    for _ in range(240):
        run.step(forgets=0.0)
        if forgets and run.attached and run.rng.random() < 0.05:
            run.restart()
        assert len(run.session.streams.windows) <= len(MANY_TOPICS)
    run.finish()
    run.check_all_is_delivered_in_order()
    assert run.worker.ended
    assert len(run.session.streams.windows) <= STREAMS_MAX


@pytest.mark.parametrize("forgets", [False, True], ids=["", "restarts"])
@pytest.mark.parametrize("seed", range(150))
def test_more_topics_than_streams_take_turns_though_messages_take_their_time(
    seed: int, forgets: bool
) -> None:
    run = SlowRun(seed, topics=MANY_TOPICS, streams_max=STREAMS_MAX)
    run.worker.window_bytes = run.rng.choice((60, 1_000))
    for _ in range(400):
        run.step(forgets=0.0)
        if forgets and run.attached and run.rng.random() < 0.05:
            run.restart()
    run.finish()
    run.check_all_is_delivered_in_order()
    assert run.worker.ended


@pytest.mark.parametrize("seed", range(150))
def test_a_restart_of_the_daemon_costs_no_record_its_outcome(seed: int) -> None:
    run = Run(seed)
    for _ in range(120):
        run.step(forgets=0.0)
        if run.attached and run.rng.random() < 0.1:
            run.restart()
    run.finish()
    run.check_all_is_delivered_in_order()


@pytest.mark.parametrize("seed", range(150))
def test_each_record_has_one_true_outcome_when_the_daemon_forgets(seed: int) -> None:
    """Every record is told once; delivered means in the log once; not persisted means never in it; the order
    of what is in the log is kept."""
    run = Run(seed)
    for _ in range(120):
        run.step(forgets=0.5)
    run.finish()
    logged = [payload for _, payload in run.worker.log]
    assert len(logged) == len(set(logged)), "a record was doubled"
    for _, payload, told in run.made:
        assert len(told) == 1
        if told[0] is None:
            assert payload in logged
        else:
            assert isinstance(told[0], DaemonLost)
            assert told[0].persistence == 1
    for topic in TOPICS:
        mine = [payload for name, payload in run.worker.log if name == topic]
        assert mine == sorted(mine)


def test_a_ticket_that_is_not_taken_brings_a_new_identity() -> None:
    """A WELCOME that was lost took its secret with it: only another client id can get in."""
    session = Session(ClientIdentity(name="x", pid=1, fork_generation=3, token=None), delivery_timeout_ms=1e9)
    session.wake(0)
    ids = []
    for turn in range(2):
        (hello,) = session.attachment.take_effects()[-1:]
        assert isinstance(hello, OpenControl)
        ids.append(msgpack.unpackb(hello.frames[0])[2])
        session.receive_control([msgpack.packb([Kind.ASSIGNED, "w", 1, b"t"])], 0)
        session.receive_worker([msgpack.packb([Kind.REFUSED, "NOT_ADMITTED", "no", None])], 0)
        session.tick(1_000.0 * (turn + 1))
    assert ids[0] != ids[1] and all(i.endswith(b"\0\0\0\3") for i in ids)


def test_a_welcome_after_delivery_timeout_is_ignored() -> None:
    """It brought the secret of a client id that was given up. At the next connection the daemon knew nobody by both,
    and records that it had accepted meanwhile were in doubt."""
    harness = Harness()
    run, session = harness.run, harness.session
    session.attachment.delivery_timeout_ms = 10_000
    run.add()
    session.next_frames()
    session.lost("cut", run.now_ms)
    session.attachment.take_effects()
    for _ in range(20):
        run.now_ms += 500
        session.tick(run.now_ms)
        if session.attachment.take_effects() and run.now_ms < 10_000:
            assigned = msgpack.packb([Kind.ASSIGNED, "worker", 2, b"t"])
            session.receive_control([assigned], run.now_ms)
    run.now_ms += 1
    assert session.attachment.state is State.ATTACH
    session.tick(run.now_ms)
    assert run.made[0][2][0].persistence == 1, "given up"
    assert session.attachment.state is not State.ATTACH
    session.receive_worker([msgpack.packb(run.worker.welcome(run.worker.secret))], run.now_ms)
    assert session.attachment.state is not State.ATTACHED


def test_the_backoff_grows_while_no_daemon_answers() -> None:
    session = Session(ClientIdentity(name="x", pid=1, fork_generation=0, token=None), delivery_timeout_ms=1e9)
    session.wake(0)
    waits = []
    now = 0.0
    for _ in range(8):
        assert session.attachment.state is State.HELLO
        session.lost("nobody listens there", now)
        assert session.due_ms < inf
        waits.append(session.due_ms - now)
        now = session.due_ms
        session.tick(now)
    assert waits[0] < 30 and 700 < waits[-1] < 1300
    assert all(later > earlier for earlier, later in pairwise(waits[:6]))


class Harness:
    """A session attached to a worker that the test plays by hand."""

    def __init__(self, make_session: Callable[..., Session] = Session) -> None:
        self.run = Run(1, make_session=make_session)
        self.run.act()
        self.session = self.run.session
        assert self.session.attachment.state is State.ATTACHED
        self.drain()

    def drain(self) -> list[list[Any]]:
        """Every message that the session wants to send now."""
        found = []
        while (frames := self.session.next_frames()) is not None:
            found.append(msgpack.unpackb(frames[0]))
        return found

    def outcomes(self, *numbers: int) -> None:
        data = b"".join(
            pack_outcome(
                Outcome(OutcomeKind.DELIVERED, 2, Shape.RANGE, number, 9, 0, 1, 0, 0, 1, 1, -1, b"", "")
            )
            for number in numbers
        )
        self.run.tell([Kind.OUTCOMES, numbers[0], numbers[-1]], data)


def test_an_ack_travels_with_the_next_submission() -> None:
    harness = Harness()
    harness.outcomes(1, 2, 3)
    assert harness.drain() == [], "nobody waits for it yet"
    harness.run.add()
    (submit,) = harness.drain()
    assert submit[0] == Kind.SUBMIT
    assert submit[9] == 3
    harness.run.pass_time(1_000.0)
    assert harness.drain() == [], "it was said"


def test_an_ack_without_a_submission_comes_after_a_while() -> None:
    harness = Harness()
    harness.outcomes(1)
    assert harness.session.due_ms == ACK_DELAY_MS
    harness.run.pass_time(ACK_DELAY_MS)
    assert harness.drain() == [[Kind.ACK, 1]]
    assert harness.session.due_ms > 2 * ACK_DELAY_MS


def test_many_outcomes_are_acknowledged_at_once() -> None:
    """The daemon's ring is bounded; a client that reads must never fill it."""
    harness = Harness()
    harness.outcomes(*range(1, ACK_OUTCOMES_MAX))
    assert harness.drain() == []
    harness.outcomes(ACK_OUTCOMES_MAX)
    assert harness.drain() == [[Kind.ACK, ACK_OUTCOMES_MAX]]


def test_a_failure_is_acknowledged_at_once() -> None:
    """The daemon keeps a failed record until its sender knows, for the case that it is gone."""
    harness = Harness()
    outcome = Outcome(OutcomeKind.FAILED, 0, Shape.RANGE, 1, 9, 1, 1, 0, 0, 1, -1, -1, b"", "no")
    harness.run.tell([Kind.OUTCOMES, 1, 1], pack_outcome(outcome))
    assert harness.drain() == [[Kind.ACK, 1]]


def test_a_draining_daemon_hears_acks_at_once() -> None:
    harness = Harness()
    harness.outcomes(1)
    harness.run.tell([Kind.DRAINING, "bye"])
    assert harness.drain() == [[Kind.ACK, 1]]


@pytest.mark.parametrize("code", ["DRAINING", "NOT_ADMITTED", "PROTOCOL_VERSION"])
@pytest.mark.parametrize("state", [State.CLOSED, State.BACKOFF])
def test_a_refusal_that_was_still_on_the_way_moves_no_session_that_has_left_its_worker(
    state: State, code: str
) -> None:
    """A frame may arrive after the session has said goodbye, or after it has given the worker up."""
    harness = Harness()
    if state is State.CLOSED:
        harness.session.bye()
    else:
        harness.session.lost("cut", harness.run.now_ms)
    harness.session.attachment.take_effects()
    harness.session.receive_worker([msgpack.packb([Kind.REFUSED, code, "no room"])], harness.run.now_ms)
    assert harness.session.attachment.state is state
    assert harness.session.attachment.fatal is None
    assert harness.session.attachment.take_effects() == []


def test_the_last_ack_is_sent_again_to_a_new_worker() -> None:
    """Whether the one before has noted it is not known."""
    harness = Harness()
    harness.outcomes(1)
    harness.run.add()
    harness.drain()
    harness.run.cut(forget=False)
    harness.run.pass_time(1.0)
    assert harness.session.attachment.state is State.ATTACHED
    assert harness.drain()[0][9] == 1


def test_a_worker_that_answers_no_ping_is_given_up_unless_bytes_still_move() -> None:
    """Behind a TCP proxy nothing else shows it. A slow line that takes our bytes, or any word of the worker, counts."""
    harness = Harness()
    run, session = harness.run, harness.session

    def pings(count: int, *, is_moving: bool = False) -> int:
        """How many of so many came, each when it was due."""
        sent = 0
        for _ in range(count):
            run.now_ms = max(run.now_ms, session.attachment.ping_at_ms)
            sent += session.ping_due(run.now_ms, is_moving=is_moving) is not None
        return sent

    assert pings(5, is_moving=True) == 5
    for _ in range(5):
        run.tell([Kind.PONG])
        assert pings(1) == 1
    run.tell([Kind.PONG])
    assert pings(5) == PINGS_UNANSWERED_MAX
    assert (session.attachment.state, session.attachment.last_word) == (
        State.BACKOFF,
        "the daemon has answered nothing for 20 s",
    )
    assert CloseSockets() in session.attachment.take_effects()
    run.pass_time(1.0)
    assert session.attachment.state is State.ATTACHED
    assert pings(5) == PINGS_UNANSWERED_MAX, "counted from zero"


@pytest.mark.rule("A9")
def test_a_flush_travels_with_the_last_submission_it_names() -> None:
    harness = Harness()
    for _ in range(6):
        harness.run.add()
    harness.session.add((), harness.run.now_ms, flush=True)
    messages = harness.drain()
    assert {message[0] for message in messages} == {Kind.SUBMIT}
    last = {message[2]: message[3] for message in messages}
    flushed = {message[2]: message[3] for message in messages if message[7] & SubmitFlag.FLUSH}
    assert flushed == last, "once for each stream, with its last submission"
    harness.session.add((), harness.run.now_ms, flush=True)
    assert [message[0] for message in harness.drain()] == [], "it is said once"


@pytest.mark.rule("A9")
def test_a_flush_after_everything_is_sent_is_a_message() -> None:
    harness = Harness()
    harness.run.add()
    (submit,) = harness.drain()
    assert not submit[7] & SubmitFlag.FLUSH
    harness.session.add((), harness.run.now_ms, flush=True)
    assert harness.drain() == [[Kind.FLUSH, submit[2], submit[3]]]
