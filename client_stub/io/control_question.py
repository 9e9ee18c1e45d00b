"""ControlQuestion: one question to the daemon, on a connection of its own to the control socket.

It shares nothing with the io thread: a producer that only asks starts no thread, and a fork inherits nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import inf
from typing import Any, Final, Generic, TypeVar

import msgpack

from client_stub.contract.wire import Kind
from client_stub.errors import DaemonUnreachable, SidecarError
from client_stub.io.transport import Transport
from client_stub.outbox.green_lock import pause, wait_readable
from client_stub.session.refusals import REFUSALS, Lasts, refusal_error
from client_stub.system.originals import monotonic
from client_stub.zmtp.keys import WatchedKeyFile

RETRY_MS: Final = 50.0
"""The time between two tries while no daemon answers, or it cannot answer yet."""
ANSWER_MS: Final = 2_000.0
"""The longest time for an answer, in addition to the time that the daemon may wait itself."""
ASKED_MS: Final = 30_000.0
"""The longest time that the daemon keeps one question; a caller with a longer timeout asks again."""
_Answer = TypeVar("_Answer")


class ControlQuestion(Generic[_Answer]):
    """One question: call ``step`` until it returns an answer or raises, then ``close``. Not thread-safe.

    Times are milliseconds of the caller's monotonic clock.
    """

    def __init__(
        self,
        control_path: str,
        timeout_ms: float,
        now_ms: float,
        curve_keys: WatchedKeyFile | None = None,
    ) -> None:
        self._path = control_path
        self._curve_keys = curve_keys
        self._timeout_ms = timeout_ms
        self._deadline_ms = now_ms + timeout_ms
        self._transport: Transport | None = None
        self._retry_at_ms = now_ms
        self.cluster_error = ""
        """Why no broker answers the daemon, as it says; empty while one does, or from an older daemon."""
        self._why: SidecarError | None = None
        """The error of the last try."""
        self._tries = 0
        self._answer_by_ms = now_ms

    def _question(self, asked_ms: float) -> list[Any]:
        """The message, for a daemon that may take ``asked_ms`` for its answer."""
        raise NotImplementedError

    def _answer(self, message: Sequence[Any]) -> _Answer | None:
        """What the message answers; None for one of another kind. Raises the answer's error."""
        raise NotImplementedError

    def _timeout(self) -> SidecarError:
        """The error of a question that was asked until its timeout, each time in vain."""
        assert self._why is not None
        return self._why

    def step(self, now_ms: float) -> _Answer | None:
        """Ask, or look for the answer; None while there is none. It does not wait.

        Raises DaemonUnreachable, DaemonRefused, and the errors of its kind.
        """
        if self._transport is None:
            if now_ms < self._retry_at_ms:
                return None
            if now_ms >= self._deadline_ms and self._why is not None:
                raise self._timeout()
            asked_ms = min(self.left_ms(now_ms), ASKED_MS)
            self._answer_by_ms = now_ms + asked_ms + ANSWER_MS
            try:
                self._transport = Transport(self._path, self._curve_keys, self._tries)
            except OSError as error:  # no file descriptor is free
                why = error.strerror or str(error)
                self._try_again(
                    now_ms, DaemonUnreachable(f"The daemon at {self._path} cannot be asked: {why}.")
                )
                return None
            self._tries += 1
            self._transport.open_control([msgpack.packb(self._question(asked_ms))])
        elif now_ms >= self._answer_by_ms:
            raise DaemonUnreachable(f"The daemon at {self._path} does not answer.")
        for source, frames in self._transport.poll(0.0):
            if source == "barred" and self._tries > 1:  # the first time its daemon may just start
                raise refusal_error("NOT_PERMITTED", frames[0].decode())
            if source in ("lost", "barred"):
                why = frames[0].decode().rstrip(".")
                self._try_again(now_ms, DaemonUnreachable(f"No daemon answers at {self._path}: {why}."))
                return None
            try:
                answer = self._read(msgpack.unpackb(frames[0], strict_map_key=False), now_ms)
            except (ValueError, TypeError, IndexError) as error:
                text = f"The daemon at {self._path} sent an answer that cannot be read ({error})."
                self._try_again(now_ms, DaemonUnreachable(text))
                return None
            if answer is not None or self._transport is None:
                return answer
        return None

    def wait(self) -> _Answer:
        """Do all steps, and close. Raises as ``step``."""
        try:
            while (found := self.step(monotonic() * 1e3)) is None:
                self.wait_for_step()
            return found
        finally:
            self.close()

    def wait_for_step(self, ends_ms: float = inf) -> None:
        """Wait in the calling thread until the next step has something to do, or until ``ends_ms``."""
        now_ms = monotonic() * 1e3
        fd = self.fileno()
        if fd is None:
            pause(min(self.pause_ms(now_ms), ends_ms - now_ms) / 1e3)
        else:
            wait_readable(fd, min(self.answer_ms(now_ms), ends_ms - now_ms) / 1e3)

    def pause_ms(self, now_ms: float) -> float:
        """The time in ms until the next try; 0 while one is under way."""
        return 0.0 if self._transport is not None else max(0.0, self._retry_at_ms - now_ms)

    def fileno(self) -> int | None:
        """The socket on which the answer arrives; None while no try is under way."""
        return None if self._transport is None else self._transport.control_fileno()

    def left_ms(self, now_ms: float) -> float:
        """The time in ms until the caller's timeout."""
        return max(0.0, self._deadline_ms - now_ms)

    def answer_ms(self, now_ms: float) -> float:
        """The time in ms that the try under way may still take."""
        return max(0.0, self._answer_by_ms - now_ms)

    def close(self) -> None:
        """Close the connection, if there is one."""
        if self._transport is not None:
            self._transport.close(None)
            self._transport = None

    def forked(self) -> None:
        """In a forked child: close its copy of the parent's connection."""
        if self._transport is not None:
            self._transport.forked()

    def _read(self, message: Sequence[Any], now_ms: float) -> _Answer | None:
        if message[0] != Kind.REFUSED:
            return self._answer(message)
        name, text = message[1:3]
        self.cluster_error = str(message[4]) if len(message) > 4 else ""
        error, row = refusal_error(name, text), REFUSALS.get(name)
        if row is None or row.lasts is not Lasts.A_MOMENT:
            raise error
        self._try_again(now_ms, error)
        return None

    def _try_again(self, now_ms: float, why: SidecarError) -> None:
        self.close()
        self._why = why
        self._retry_at_ms = now_ms + RETRY_MS
