"""The control endpoint ({run_dir}/control.sock): stubs send HELLO here and learn their worker; the CLI sends TOPICS.

The Daemon owns it, on the controller's loop.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import msgpack

from client_stub.contract.wire import Kind
from sidecar.common.errors import Refused
from sidecar.common.explanation import NAME_CHARACTERS_MAX
from sidecar.common.sparse_log import SparseLog
from sidecar.common.wording import PLEASE_REPORT
from sidecar.config.client_rules import Caller, ClientRules
from sidecar.controller.front.asked_record import AskedRecord, asked_record
from sidecar.controller.rundir.run_dir import RunDir, RunDirError
from sidecar.net.stubs.endpoint import Endpoint
from sidecar.net.stubs.stub_connection import UNATTACHED_BYTES_MAX
from sidecar.net.stubs.unattached import PER_FREE

if TYPE_CHECKING:
    from sidecar.net.stubs.curve_gate import CurveGate
    from sidecar.net.stubs.tcp_listen import Listening

log = logging.getLogger(__name__)

CONNECTION_S = 60.0
"""The longest life of a connection. A HELLO is answered within 2 s, TOPICS when the cluster has reported the topics."""
TOPICS_UNDER_WAY_MAX = 64
"""The most open questions of all users. One user may have at most three times as many as are still free, so that a new
user always finds a place.
"""
HELLO_WAIT_S = 2.0
"""How long a HELLO waits for its worker; a stub waits 5 s for the answer."""
HELLOS_WAITING_MAX = 4096

WITHDRAWN_TEXT: Final = "This client's public key is in no table [clients.NAME] any more."

Topics = list[list[object]]
Hello = Callable[[list[Any], Caller], tuple[str, int, bytes] | None]
AskTopics = Callable[[list[str] | None, float | None, Caller], Awaitable[Topics]]
CheckAsked = Callable[[object], Awaitable[None]]
WhyWaits = Callable[[str, Topics], str]
GiveOrder = Callable[[str, list[str], Caller], Awaitable[list[object]]]
AskLastRecord = Callable[[AskedRecord, Caller], Awaitable[list[object]]]
AskExplain = Callable[[str, Caller], Awaitable[list[object]]]


class ControlEndpoint:
    """A ROUTER in the controller's loop. ``refused`` counts refusals by their code.

    ``hello(fields, caller)`` returns (endpoint, epoch, ticket), raises Refused, or returns None if its worker is not
    ready. Such a HELLO is kept and tried again (``ask_again``), so that the client is admitted as soon as its worker
    is ready. ``topics(names | None, max_wait_ms | None, caller)`` returns the list of TOPICS_REPLY or raises Refused,
    ``order(verb, names, caller)`` the fields of ORDER_REPLY, and ``explain(name, caller)`` those of EXPLAIN_REPLY.
    """

    def __init__(self, path: Path) -> None:
        """``path`` is replaced atomically if it exists: an earlier daemon loses its socket, and clients always find
        one.
        """
        self._hello: Hello = lambda fields, caller: None
        self._topics: AskTopics | None = None
        self._order: GiveOrder | None = None
        self._explain: AskExplain | None = None
        self.check_asked: CheckAsked | None = None
        """Raises Refused for a question of a program that asks for another cluster."""
        self.why_waits: WhyWaits = lambda topic, rows: ""
        """For what the records of a topic wait, by its rows of TOPICS_REPLY: the last field of that."""
        self.last_record: AskLastRecord | None = None
        """The fields of LAST_RECORD_REPLY. Raises Refused."""
        self.refused: dict[str, int] = {}
        self._loop = asyncio.get_running_loop()
        self._pack: Callable[[list[object]], bytes] = msgpack.Packer().pack
        self._sparse_log = SparseLog(log, lambda: self._loop.time() * 1000)
        self._path = path
        self._temporary = temporary = path.with_name(f".control.{os.getpid()}")
        # Clients do not attach here, so every connection keeps the limits of an unattached one.
        self._endpoint = Endpoint(
            self._loop,
            str(temporary),
            on_message=self._on_message,
            on_turn_end=lambda: None,
            message_bytes_max=UNATTACHED_BYTES_MAX,
            attach_s=CONNECTION_S,
        )
        temporary.rename(path)
        self._gate: CurveGate | None = None
        """The TCP gate, if daemon.listen is set."""
        self._tasks: dict[asyncio.Task[None], int] = {}
        """Questions and orders under way → the uid of each."""
        self._waiting: dict[bytes, tuple[list[Any], asyncio.TimerHandle]] = {}
        """Routing id → a HELLO whose worker is not ready."""

    def listen(
        self,
        listening: Listening,
        rules: Callable[[], ClientRules],
        on_new_keys: Callable[[], None] = lambda: None,
    ) -> None:
        """Take clients over TCP as well, by the keys that the rules have at the time. Raises KeyFileError."""
        from sidecar.net.stubs.curve_gate import CurveGate

        self._gate = CurveGate(listening.socket, listening.key_file, rules, on_new_keys)
        self._endpoint.add_gate(self._gate)

    @property
    def public_keys(self) -> list[str]:
        """The public keys by which clients over TCP know this daemon; none without ``listen``."""
        return [] if self._gate is None else self._gate.public_keys

    def listen_again(self) -> None:
        """Make the socket again, whose folder was removed. Raises OSError."""
        self._endpoint.listen_again()
        self._temporary.rename(self._path)

    def check_keys(self) -> None:
        """Check whether the key file has changed, even when no client connects."""
        if self._gate is not None:
            self._gate.check()

    def close(self) -> None:
        self._endpoint.close()
        for task in self._tasks:
            task.cancel()
        for _, timer in self._waiting.values():
            timer.cancel()
        self._waiting.clear()

    def serve(
        self,
        hello: Hello,
        topics: AskTopics,
        order: GiveOrder | None = None,
        explain: AskExplain | None = None,
    ) -> None:
        """Answer with these functions from now on, also the clients that wait already."""
        self._hello = hello
        self._topics = topics
        self._order = order
        self._explain = explain
        self.ask_again()

    def ask_again(self) -> None:
        """Try every waiting HELLO again, as a worker is ready or the daemon's state has changed."""
        waiting, self._waiting = self._waiting, {}
        for routing_id, (fields, timer) in waiting.items():
            if not self._answer_hello(routing_id, fields):
                self._waiting[routing_id] = (fields, timer)
            else:
                timer.cancel()

    def _answer_hello(self, routing_id: bytes, fields: list[Any]) -> bool:
        """Answer a HELLO. Returns False when there is no answer yet."""
        try:
            assigned = self._hello(fields, self._endpoint.caller(routing_id))
        except Refused as refusal:
            if refusal.code == "NOT_ADMITTED":
                self._sparse_log.warning(str(refusal), "Refused: %s", ascii(str(refusal)))
            self._refuse(routing_id, refusal)
            if refusal.code == "NOT_ADMITTED":
                # A stub asks again after seconds, so a client that asks at once is trying tokens.
                self._endpoint.sent_nonsense(routing_id)
            return True
        if assigned is None:
            return False
        self._send(routing_id, [Kind.ASSIGNED, *assigned])
        return True

    def _keep_hello(self, routing_id: bytes, fields: list[Any]) -> None:
        before = self._waiting.pop(routing_id, None)
        if before is not None:
            before[1].cancel()
        if len(self._waiting) >= HELLOS_WAITING_MAX:
            self._not_ready(routing_id)
            return
        timer = self._loop.call_later(HELLO_WAIT_S, self._waited_too_long, routing_id)
        self._waiting[routing_id] = (fields, timer)

    def _waited_too_long(self, routing_id: bytes) -> None:
        if self._waiting.pop(routing_id, None) is not None:
            self._not_ready(routing_id)

    def _not_ready(self, routing_id: bytes) -> None:
        self._refuse(routing_id, Refused("NOT_READY", "No worker of the daemon is ready yet; try again."))

    def _on_message(self, routing_id: bytes, frames: list[memoryview], skipped_bytes: int) -> None:
        try:
            message = msgpack.unpackb(frames[0], strict_map_key=False)
            kind = Kind(message[0])
        except Exception:
            self._refuse(
                routing_id, Refused("MALFORMED_FRAME", "The frame is not a message of this protocol.")
            )
            return
        try:
            self._handle(routing_id, kind, message)
        except Exception as error:
            self._sparse_log.warning(
                "control",
                f"A control message could not be handled. {PLEASE_REPORT}",
                exc_info=error,
            )

    def _handle(self, routing_id: bytes, kind: Kind, message: Any) -> None:
        if kind is not Kind.HELLO and self._is_withdrawn(routing_id):
            # A HELLO is also checked by its name, with a text of its own.
            self._refuse(routing_id, Refused("NOT_ADMITTED", WITHDRAWN_TEXT))
            self._endpoint.sent_nonsense(routing_id)
        elif kind is Kind.HELLO:
            if not self._answer_hello(routing_id, message[1:]):
                self._keep_hello(routing_id, message[1:])
        elif kind is Kind.TOPICS:
            self._on_topics(routing_id, message)
        elif kind is Kind.ORDER:
            self._on_order(routing_id, message)
        elif kind is Kind.EXPLAIN:
            self._on_explain(routing_id, message)
        elif kind is Kind.LAST_RECORD:
            self._on_last_record(routing_id, message)
        elif kind is Kind.PING:
            self._send(routing_id, [Kind.PONG])
        else:
            self._refuse(
                routing_id,
                Refused("MALFORMED_FRAME", f"{kind.name} does not belong on the control endpoint."),
            )

    def _is_withdrawn(self, routing_id: bytes) -> bool:
        """Whether a reload has removed its key from all tables since it connected."""
        if self._gate is None:
            return False
        key = self._endpoint.caller(routing_id).key
        return bool(key) and not self._gate.knows(key)

    def _on_topics(self, routing_id: bytes, message: Any) -> None:
        names = message[1] if len(message) > 1 else None
        wait_ms = message[2] if len(message) > 2 else None
        asked = message[3] if len(message) > 3 else None
        if names is not None and not _are_names(names):
            self._refuse(routing_id, Refused("MALFORMED_FRAME", "TOPICS takes a list of names or nil."))
        elif wait_ms is not None and not (isinstance(wait_ms, int | float) and wait_ms >= 0):
            self._refuse(routing_id, Refused("MALFORMED_FRAME", "TOPICS waits for a time of 0 ms or more."))
        else:
            wants_reason = len(message) > 4 and message[4] is True
            self._answer(
                routing_id, Kind.TOPICS_REPLY, self._topics_reply, names, wait_ms, asked, wants_reason
            )

    async def _topics_reply(
        self,
        names: list[str] | None,
        wait_ms: float | None,
        asked: object,
        wants_reason: bool,
        caller: Caller,
    ) -> list[object]:
        assert self._topics is not None
        if asked is not None and self.check_asked is not None:
            await self.check_asked(asked)
        rows = await self._topics(names, wait_ms, caller)
        is_for_one = wants_reason and names is not None and len(names) == 1
        waits_for = self.why_waits(names[0], rows) if is_for_one and names else ""
        return [rows, waits_for] if waits_for else [rows]

    def _on_order(self, routing_id: bytes, message: Any) -> None:
        verb, names = (*message[1:3], None, None)[:2]
        if isinstance(verb, str) and _are_names(names):
            self._answer(routing_id, Kind.ORDER_REPLY, self._order, verb, names)
        else:
            self._refuse(routing_id, Refused("MALFORMED_FRAME", "ORDER takes a verb and a list of names."))

    def _on_explain(self, routing_id: bytes, message: Any) -> None:
        name = message[1] if len(message) > 1 else ""
        if isinstance(name, str) and len(name) <= NAME_CHARACTERS_MAX:
            self._answer(routing_id, Kind.EXPLAIN_REPLY, self._explain, name)
        else:
            self._refuse(
                routing_id,
                Refused(
                    "MALFORMED_FRAME", f"EXPLAIN takes a name of at most {NAME_CHARACTERS_MAX} characters."
                ),
            )

    def _on_last_record(self, routing_id: bytes, message: Any) -> None:
        try:
            question = asked_record(message[1:])
        except Refused as refusal:
            self._refuse(routing_id, refusal)
        else:
            self._answer(routing_id, Kind.LAST_RECORD_REPLY, self.last_record, question)

    def _answer(
        self,
        routing_id: bytes,
        kind: Kind,
        ask: Callable[..., Awaitable[list[object]]] | None,
        *fields: object,
    ) -> None:
        """Send the result of ``ask(*fields, caller)``, if there is a place for one more question of this user."""
        uid = self._endpoint.peer(routing_id).uid
        free = TOPICS_UNDER_WAY_MAX - len(self._tasks)
        if list(self._tasks.values()).count(uid) >= PER_FREE * free:
            self._refuse(routing_id, Refused("NOT_READY", "Too many clients ask at once; try again."))
        elif ask is None or self._topics is None:
            self._refuse(
                routing_id, Refused("NOT_READY", "The daemon is taking over from another; try again.")
            )
        else:
            task = self._loop.create_task(self._answer_later(routing_id, kind, ask, fields))
            self._tasks[task] = uid
            task.add_done_callback(self._tasks.pop)

    async def _answer_later(
        self,
        routing_id: bytes,
        kind: Kind,
        ask: Callable[..., Awaitable[list[object]]],
        fields: tuple[object, ...],
    ) -> None:
        try:
            found = await ask(*fields, self._endpoint.caller(routing_id))
            self._send(routing_id, [kind, *found])
        except Refused as refusal:
            self._refuse(routing_id, refusal)
        except Exception as error:
            log.exception("An answer of kind %s failed.", kind.name)
            self._refuse(routing_id, Refused("FAILED", f"The daemon cannot answer: {error}."))

    def _refuse(self, routing_id: bytes, refusal: Refused) -> None:
        self.refused[refusal.code] = self.refused.get(refusal.code, 0) + 1
        if refusal.code == "MALFORMED_FRAME":
            peer = self._endpoint.peer(routing_id)
            self._sparse_log.warning(
                ("malformed", peer.payer, peer.uid), "A frame of %s was refused: %s", peer.words, refusal
            )
            self._endpoint.sent_nonsense(routing_id)
        more = [refusal.cluster_error] if refusal.cluster_error else []
        self._send(routing_id, [Kind.REFUSED, refusal.code, str(refusal), None, *more])

    def _send(self, routing_id: bytes, message: list[object]) -> None:
        # A client that is gone or does not read will ask again.
        self._endpoint.send(routing_id, [self._pack(message)])


def open_control(run_dir: RunDir) -> ControlEndpoint:
    """Open the control endpoint of a run directory. Raises RunDirError."""
    try:
        return ControlEndpoint(run_dir.control_socket)
    except OSError as error:
        raise RunDirError(
            f"The socket {run_dir.control_socket} cannot be made ({error.strerror}): make room on its disk, check the "
            "permissions of the folder, or choose another with --run-dir."
        ) from None


def _are_names(names: object) -> bool:
    return isinstance(names, list) and all(isinstance(each, str) for each in names)
