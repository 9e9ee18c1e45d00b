"""IoThread: runs the session over the transport for one producer. It is the only thread that uses sockets.

In each turn it takes the records that callers have queued, runs timers, and sends all it can. It then hands
acceptances and outcomes back, and sleeps until a socket, a deadline or a caller wakes it. Callbacks of records run
here.
"""

from __future__ import annotations

import itertools
import sys
import threading
from functools import partial
from math import inf
from typing import TYPE_CHECKING, Any, Final

from client_stub.contract.wire import Format, LocalCode, Persistence
from client_stub.errors import DeliveryFailed, ProducerClosed, SidecarError, error_for
from client_stub.io.slow_topics import SlowTopics
from client_stub.io.topic_question import TopicQuestion
from client_stub.io.transport import Transport
from client_stub.outbox.green_lock import GreenLock, locked_lock
from client_stub.outbox.outbox import Outbox
from client_stub.outbox.transactional_outbox import TransactionalOutbox
from client_stub.session.away_log import AwayLog
from client_stub.session.effects import CloseSockets, OpenControl, OpenWorker
from client_stub.session.session import Session
from client_stub.session.states import State
from client_stub.system.log import log
from client_stub.system.originals import get_ident, monotonic, start_thread
from client_stub.zmtp.keys import WatchedKeyFile

if TYPE_CHECKING:
    from _thread import LockType

_ATTACHED: Final = State.ATTACHED
"""Cached: reading an enum member through its class costs as much as a call, and each turn needs this one twice."""

CLOSE: Final = "close"
CANCEL: Final = "cancel"


class IoThread:
    """The thread starts with the first send of a process, and ends by ``request_close`` or with the process."""

    def __init__(self, outbox: Outbox, session: Session, curve_keys: WatchedKeyFile | None = None) -> None:
        self._outbox = outbox
        self._transactions = outbox if isinstance(outbox, TransactionalOutbox) else None
        self._session = session
        outbox.waiters.reasons.hold_reasons = session.streams.hold_reasons
        self._transport = Transport(outbox.path, curve_keys)
        self._unsent: list[Any] | None = None
        self._ending: str | None = None
        self._away_log = AwayLog(outbox.path)
        self._slow_topics = SlowTopics(outbox, partial(TopicQuestion, outbox.path, curve_keys=curve_keys))
        self.has_ended = False
        """Set when only the return of its thread is left."""
        self.has_begun = False
        self._threads: list[threading.Thread] = []
        """Those that were started, of which one runs. Empty where ``threading`` is green."""
        self._joiners: list[LockType | GreenLock] = []
        """A locked lock for each thread that waits for the end of this one."""
        self._entries = itertools.count()

    def start(self) -> None:
        """Start the thread unless it runs. Concurrent calls, and a repeat after a call that an exception ended, are
        harmless.
        """
        if not self.has_begun:
            self._outbox.set_waker(self._transport.waker)
            thread = start_thread(self._run, "kafka-sidecar-io")
            self.has_begun = True
            if thread is not None:
                self._threads.append(thread)

    def request_close(self, *, cancel: bool) -> None:
        """End the thread once every record has its outcome; with ``cancel``, fail the rest first. Any thread."""
        self._ending = CANCEL if cancel else (self._ending or CLOSE)
        self._outbox.wake(always=True)

    def abandon(self) -> None:
        """End the thread as ``request_close`` does. The garbage collector calls this, at any moment."""
        self._ending = self._ending or CLOSE
        waker = self._outbox.waker
        if waker is not None:
            waker.wake()

    def log_left(self, occasion: str) -> None:
        """Log the records that a close() leaves, as ``Failures.log_left`` does."""
        outbox = self._outbox
        outbox.failures.log_left(list(outbox.pending), outbox.waiters.reasons, occasion)

    def forked(self) -> None:
        """In a forked child: the thread does not run there, and the connections belong to the parent."""
        self._outbox.forked = True
        self._outbox.set_waker(None)
        self._transport.forked()
        self._slow_topics.forked()
        self._release_joiners()

    def join(self, timeout: float | None) -> None:
        """Wait at most ``timeout`` seconds for the end of the thread; not in it itself, nor in a forked child."""
        if not self.has_begun or get_ident() == self._outbox.waiters.io_thread_id:
            return
        if sys.is_finalizing():
            return  # it runs no more; from Python 3.14 on a join would raise
        lock = locked_lock()
        self._joiners.append(lock)  # before the flags are read, so that a later end releases it
        if not (self.has_ended or self._outbox.forked):
            lock.acquire(timeout=-1.0 if timeout is None else timeout)
        if self.has_ended:
            for thread in self._threads:
                thread.join(timeout)  # only its return is left

    def _release_joiners(self) -> None:
        while self._joiners:
            self._joiners.pop().release()

    def _run(self) -> None:
        if next(self._entries) or self._outbox.forked:
            return  # another thread runs it, or the parent process does
        self.has_begun = True
        self._outbox.waiters.io_thread_id = get_ident()
        try:
            self._session.wake(monotonic() * 1e3)
            while self._turn():
                pass
        except BaseException as error:
            if self._outbox.forked:
                raise  # a callback forked, and this is the child, which ends: the records are the parent's
            log.exception("The producer's io thread failed: create a new Producer.")
            self._die(error)
        finally:
            self.has_ended = True
            self._release_joiners()
            self._outbox.waiters.call_listeners()

    def _turn(self) -> bool:
        """Send the callers' records, complete the decided ones, then sleep until the daemon or a caller wakes the
        thread.

        Records are completed right before the sleep: the callers that this wakes need the GIL, which is then free.
        """
        outbox, session, transport = self._outbox, self._session, self._transport
        attachment, streams = session.attachment, session.streams
        now_ms = monotonic() * 1e3
        # Read only once: a close requested after the gathering takes effect in the next turn, as otherwise the
        # submission being filled would be lost.
        ending = self._ending
        # Before the gathering: the submissions of a call's transaction were closed before it came.
        calls = () if self._transactions is None else self._transactions.take_calls()
        if outbox.has_unsent or ending is not None:
            # At the end every record is sent or fails, even in submissions that are not full.
            sealed, flush = outbox.gather(session.wants if ending is None else lambda _: True)
            flush = flush or ending == CLOSE
            if sealed or flush:
                session.add(sealed, now_ms, flush=flush)
        if calls:
            session.add_calls(calls)
        if attachment.state is not _ATTACHED or now_ms >= session.due_ms:
            self._tick(now_ms)
        # Send until the session has nothing more, or the socket is full: ``poll`` then waits for it.
        frames = self._unsent or session.next_frames()
        while frames is not None and transport.send(frames):
            frames = session.next_frames()
        self._unsent = frames
        if ending is not None and (ending == CANCEL or not streams.undecided):
            self._end()
            return False
        # Pass on to the callers what the session has learned.
        if attachment.has_new_state or streams.refused_topics:
            self._publish_state()
        transactional = session.transactional
        if transactional is not None and self._transactions is not None and transactional.take_changed():
            self._transactions.calls_ended(transactional.fatal)
        if streams.has_progress:
            released, finished, has_outcomes = streams.take_progress()
            outbox.settle(released, finished, is_news=has_outcomes)
        if attachment.state is not _ATTACHED:
            self._away_log.away(
                attachment.last_word,
                outbox.buffered_bytes,
                now_ms,
                is_refused=bool(attachment.refusal),
                sends_fail=attachment.fatal is not None,
            )
        elif self._away_log.is_away:
            self._away_log.back(now_ms)
        if outbox.forked:
            return False  # a callback forked: this is the child, and the sockets are the parent's
        # Sleep until the next timer of the session or of the records that wait.
        wakeup_ms = session.due_ms
        if outbox.pending:
            slow = self._slow_topics
            if now_ms >= slow.due_ms:
                slow.check(now_ms)
            wakeup_ms = min(wakeup_ms, slow.due_ms)
        timeout_ms = None if wakeup_ms == inf else wakeup_ms - now_ms
        messages = transport.poll(outbox.sleep_ms(session.wants, timeout_ms))
        outbox.awake()
        if messages:
            now_ms = monotonic() * 1e3
            for kind, received in messages:
                self._receive(kind, received, now_ms)
        return not outbox.forked

    def _receive(self, kind: str, frames: list[bytes], now_ms: float) -> None:
        session = self._session
        if kind in ("lost", "barred"):
            session.lost(frames[0].decode(), now_ms, is_barred=kind == "barred")
            return
        try:
            if kind == "control":
                session.receive_control(frames, now_ms, key_is_replaced=self._transport.key_is_replaced)
            else:
                session.receive_worker(frames, now_ms)
        except (ValueError, TypeError, IndexError) as error:
            log.warning(
                "A message from the daemon could not be read (%s): the producer connects again.", error
            )
            session.lost(f"unreadable message: {error}", now_ms)

    def _act(self) -> None:
        for effect in self._session.attachment.take_effects():
            match effect:
                case OpenControl(frames):
                    self._transport.open_control(frames)
                case OpenWorker(endpoint, frames):
                    self._unsent = None
                    self._transport.open_worker(endpoint, frames)
                case CloseSockets():
                    self._unsent = None
                    self._transport.close_sockets()

    def _tick(self, now_ms: float) -> None:
        """Ask whether the worker is still there when that is due, and let the session's timers run."""
        session = self._session
        if now_ms >= session.attachment.ping_at_ms:
            ping = session.ping_due(now_ms, is_moving=self._transport.is_moving())
            if ping is not None:
                # After a message that is partly written it is dropped. It still counts while the worker takes no byte
                # of that message: it would not answer either. Once it takes some, ``is_moving`` begins the count again.
                self._transport.send(ping)
        session.tick(now_ms)
        if session.attachment.effects:
            self._act()

    @property
    def is_refused(self) -> bool:
        """Whether the daemon has refused the producer or a topic of late. Records fail of it before the outbox has it.
        Any thread.
        """
        session = self._session
        return session.attachment.fatal is not None or bool(session.streams.refused_topics)

    def _publish_state(self) -> None:
        """Give the callers the session's state: its limits, the reason why it is away, and refusals."""
        outbox, refused_topics = self._outbox, self._session.streams.refused_topics
        standing = self._session.attachment.take_standing()
        if standing.welcome_count != outbox.connection_count:
            outbox.connection_count = standing.welcome_count
            limits = standing.limits
            outbox.size_limits.request_bytes_max = limits.get("max_request_size")
            outbox.size_limits.payload_bytes_max = standing.payload_bytes_max
            outbox.submission_bytes = standing.submission_bytes
            outbox.columns_readable = bool(int(limits.get("formats", 0)) >> Format.ARROW & 1)
            outbox.attached_once = True
        reasons = outbox.waiters.reasons
        reasons.last_word, reasons.is_turned_away = standing.last_word, standing.is_refused
        outbox.fatal = standing.fatal
        for topic, error in refused_topics:
            outbox.open_stream(topic).refusal = error
        refused_topics.clear()  # last: until here ``is_refused`` shows them
        outbox.waiters.notify()

    def _end(self) -> None:
        outbox, session = self._outbox, self._session
        outbox.end()
        session.add(outbox.gather(lambda _: True)[0], monotonic() * 1e3)
        cancels = self._ending == CANCEL or session.streams.undecided
        farewell = session.cancel(_cancelled) if cancels else session.bye()
        self._end_calls(ProducerClosed("The producer was closed before the call had its answer."))
        self._publish_state()
        released, finished, _ = session.streams.take_progress()
        outbox.settle(released, finished, is_news=True)
        outbox.failures.close()
        self._slow_topics.close()
        self._unsent = None
        outbox.set_waker(None)
        self._transport.close(farewell)

    def _end_calls(self, error: SidecarError) -> None:
        """Give the calls of transactions that wait, and later ones, this result."""
        if self._session.transactional is not None and self._transactions is not None:
            self._session.transactional.end(error)
            self._transactions.end_calls(error)

    def _die(self, error: BaseException) -> None:
        """Handle a bug in this thread: all pending and later calls fail with it, and none hangs."""
        outbox, session = self._outbox, self._session
        outbox.fatal = SidecarError(f"The producer's io thread failed: {error!r}; create a new Producer.")
        try:
            outbox.end()
            session.add(outbox.gather(lambda _: True)[0], monotonic() * 1e3)
            session.cancel(lambda sent: _failed(error, sent))
            released, finished, _ = session.streams.take_progress()
            outbox.settle(released, finished, is_news=True)
        except Exception:
            log.exception("Shutting down the producer's io thread failed as well.")
        self._end_calls(outbox.fatal)
        # Records that the session has lost in the same bug fail here.
        left = list(outbox.pending)
        for submission in left:
            if not submission.sealed:
                submission.seal(b"")
            submission.fail(_failed(error, submission.sent))
        outbox.settle((), left, is_news=True)
        outbox.failures.close()
        self._slow_topics.close()
        outbox.set_waker(None)
        self._transport.close(None)


def _cancelled(sent: bool) -> DeliveryFailed:
    persistence = Persistence.POSSIBLY_PERSISTED if sent else Persistence.NOT_PERSISTED
    text = "The producer was closed before the record was delivered"
    text += "; the daemon may still deliver it." if sent else "; it was never sent."
    return error_for(LocalCode.CANCELLED, text, persistence)


def _failed(error: BaseException, sent: bool) -> DeliveryFailed:
    persistence = Persistence.POSSIBLY_PERSISTED if sent else Persistence.NOT_PERSISTED
    return error_for(LocalCode.DISCONNECTED, f"The producer's io thread failed: {error!r}.", persistence)
