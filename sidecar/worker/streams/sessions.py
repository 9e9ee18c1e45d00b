"""Sessions: the clients of this worker by routing id and by row; attach, detach, grace period, cut."""

from __future__ import annotations

import hmac
import logging
import secrets
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from client_stub.contract.wire import CLIENT_ID_BYTES, PROTOCOL_VERSION, SECRET_BYTES, Kind
from sidecar.common.errors import Refused
from sidecar.common.tickets import attach_ticket
from sidecar.shm.segment import SegmentError
from sidecar.worker.streams.client_row_shares import ClientRowShares, TableFull
from sidecar.worker.streams.session import NOBODY, ClientSession

if TYPE_CHECKING:
    from sidecar.config.client_rules import Caller
    from sidecar.shm.client_table import ClientRow, ClientTable
    from sidecar.shm.slots import Counters
    from sidecar.worker.streams.client_limits import ClientLimits

log = logging.getLogger(__name__)

SILENCE_MS_MAX = 60_000.0
"""A stub sends PING every 10 s. One that was silent for this many ms counts as gone."""


class Sessions:
    """Clients of one worker. Not thread-safe: belongs to the worker's loop."""

    def __init__(
        self,
        *,
        table: ClientTable,
        slot: int,
        worker_epoch: int,
        instance_key: bytes,
        counters: Counters,
        grace_ms: float,
        limits: ClientLimits,
    ) -> None:
        self._limits = limits
        self.grace_ms = grace_ms
        self._table = table
        self._slot = slot
        self._worker_epoch = worker_epoch
        self._instance_key = instance_key
        self._counters = counters
        self._places = ClientRowShares(table)
        self.by_routing_id: dict[bytes, ClientSession] = {}
        """Attached sessions by routing id. Only this object changes it."""
        self.by_row: dict[int, ClientSession] = {}
        """Sessions by row, attached or within their grace period. Only this object changes it."""
        self._rows: dict[int, ClientRow] = {}
        self._by_client_id: dict[bytes, ClientRow] = {}
        self._gone_since_ms: dict[int, float] = {}

    def __iter__(self) -> Iterator[ClientSession]:
        """Iterate over a copy of the attached sessions, so attach and detach are allowed meanwhile."""
        return iter(list(self.by_routing_id.values()))

    def of_row(self, row: int) -> ClientSession | None:
        """Session of a row, attached or within its grace period."""
        return self.by_row.get(row)

    def name_of(self, row: int, generation: int) -> str | None:
        """Name of the client that an entry names; None if it is gone."""
        session = self.by_row.get(row)
        return session.name if session is not None and session.row.generation == generation else None

    def row(self, index: int, generation: int) -> ClientRow | None:
        """Row that an entry names, if it still belongs to the same client."""
        row = self._rows.get(index)
        return row if row is not None and row.generation == generation else None

    def chains_in_use(self) -> set[int]:
        """Ids of chains in use by clients: those that their rows name, and those that their streams use now. The two
        differ after a change of acks.
        """
        found: set[int] = set()
        for row in self._rows.values():
            found.update(row.chain_ids)
        for session in self.by_row.values():
            found |= {stream.topic_queue.chain.chain_id for stream in session.streams.values()}
        return found

    def records_settled(self, row: int, generation: int, count: int, share_bytes: int) -> None:
        """Subtract released records from the client's unsettled ones. ``share_bytes``: as counted for its share."""
        session = self.by_row.get(row)
        if session is not None and session.row.generation == generation:
            session.unsettled_records -= count
            session.unsettled_bytes -= share_bytes
            if session.unsettled_records == 0:
                session.unsettled_bytes = 0  # remove rounding errors

    def attach(
        self,
        routing_id: bytes,
        fields: list[Any],
        now_ms: float,
        *,
        process: int = 0,
        caller: Caller | None = None,
    ) -> tuple[ClientSession, bool]:
        """Admit a stub. Returns its session, and whether its row (positions, outcomes) still existed.

        ``process`` and ``caller`` come from the kernel; 0 and None if it does not know them. Raises Refused with a
        sentence for the stub.
        """
        _, client_id, name, _, _, ticket, secret = fields
        self._check_fields(fields)
        uid = None if caller is None else caller.uid
        token_digest = self._check(client_id, name, ticket, caller or NOBODY)
        row = self._by_client_id.get(client_id)
        if row is not None and secret is None and row.is_blank:
            # The WELCOME to a first ATTACH never arrived: its worker died in between, or the stub timed out.
            self._forget(row)
            row = None
        before: ClientSession | None = None
        if row is not None:
            before = self._earlier_session(row, secret)
        else:
            self._places.check(process, uid, now_ms)
            row = self._take_row(client_id, name, process, uid)
        self._gone_since_ms.pop(row.index, None)
        session = ClientSession(routing_id, row, name, now_ms)
        if before is not None:
            session.take_over(before)
        session.caller, session.token_digest = caller or NOBODY, token_digest
        self._limits.apply(session)
        self.by_routing_id[routing_id] = session
        self.by_row[row.index] = session
        self._count()
        return session, before is not None

    def _check_fields(self, fields: list[Any]) -> None:
        version, client_id, name, _, worker_epoch, _, secret = fields
        if version != PROTOCOL_VERSION:
            raise Refused(
                "UNSUPPORTED_VERSION",
                f"The stub speaks protocol {version}, this daemon {PROTOCOL_VERSION}; install matching versions.",
            )
        if (
            not isinstance(client_id, bytes)
            or len(client_id) != CLIENT_ID_BYTES
            or not isinstance(name, str)
            or not isinstance(secret, bytes | None)
        ):
            raise Refused("MALFORMED_FRAME", "ATTACH carries no valid client id, name or secret.")
        if worker_epoch != self._worker_epoch:
            raise Refused("STALE_EPOCH", "This worker was replaced; say HELLO again.")

    def _earlier_session(self, row: ClientRow, secret: bytes | None) -> ClientSession:
        """The session of a client that comes back, which ends here. Raises Refused."""
        if secret is None or not hmac.compare_digest(row.secret, secret):
            raise Refused("NOT_ADMITTED", "Another client already uses this client id.")
        before = self.by_row[row.index]
        if before.is_gone:
            # Its outcomes became dead letters or were dropped: it would wait for them for ever.
            raise Refused("NOT_ADMITTED", "This client was given up; its failed records are dead letters.")
        self.by_routing_id.pop(before.routing_id, None)
        before.attached = False
        return before

    def _take_row(self, client_id: bytes, name: str, process: int, uid: int | None) -> ClientRow:
        """A row for a new client. Raises Refused or TableFull."""
        try:
            row = self._table.take_row(
                client_id, name, process, self._slot, secrets.token_bytes(SECRET_BYTES), uid
            )
        except SegmentError as error:
            raise Refused("NO_MEMORY", f"There is no room for another client: {error}.") from None
        if row is None:
            raise TableFull(self._places.full_text(uid))
        self._places.took(uid)
        self._keep(row)
        return row

    def _check(self, client_id: bytes, name: str, ticket: object, caller: Caller) -> bytes:
        """Check a ticket by the current rules. Returns the digest of its token. Raises Refused.

        A reload may change the rules just now; then another HELLO decides. The stub keeps its client id, and so the
        outcomes of its records.
        """
        rules = self._limits.rules
        for digest in rules.token_digests(name):
            expected = attach_ticket(self._instance_key, client_id, name, self._worker_epoch, digest)
            if isinstance(ticket, bytes) and hmac.compare_digest(ticket, expected):
                break
        else:
            raise Refused(
                "NOT_ALLOWED",
                "The ticket is not one of this daemon; say HELLO at the control socket.",
            )
        why = rules.refusal(name, caller)
        if why is not None:
            raise Refused("NOT_ALLOWED", why)
        return digest

    def refusal_of(self, session: ClientSession) -> str | None:
        """Why an attached client must leave under the current rules; None if it may stay."""
        rules = self._limits.rules
        if session.token_digest not in rules.token_digests(session.name):
            return f'Client "{session.name}" of {session.caller.words} needs another token now.'
        return rules.refusal(session.name, session.caller)

    def adopt(self, row: ClientRow, now_ms: float) -> ClientSession:
        """Make a session of a dead worker's client row. Its grace period starts now: the stub comes back with its
        secret.
        """
        row.drop_repeat()
        session = ClientSession(b"", row, row.name, now_ms)
        session.attached = False
        self._keep(row)
        self.by_row[row.index] = session
        self._gone_since_ms[row.index] = now_ms
        return session

    def detach(self, session: ClientSession, now_ms: float, *, for_good: bool = False) -> None:
        """Detach a stub that left or cannot be reached. Its row and outcomes wait for it through the grace period.

        ``for_good`` (a clean BYE): the client will not come back for them.
        """
        if not session.attached:
            if for_good and session.row.index in self._gone_since_ms:
                self._gone_since_ms[session.row.index] = float("-inf")
            return
        session.attached = False
        self.by_routing_id.pop(session.routing_id, None)
        self._gone_since_ms[session.row.index] = float("-inf") if for_good else now_ms
        self._count()

    def absent(self) -> list[ClientSession]:
        """Sessions within their grace period: not attached, and not given up."""
        return [self.by_row[index] for index in self._gone_since_ms if not self.by_row[index].is_gone]

    def expel_silent(self, now_ms: float) -> list[ClientSession]:
        """Attached sessions that were silent for too long. The caller ends them."""
        return [s for s in self.by_routing_id.values() if now_ms - s.last_heard_ms > SILENCE_MS_MAX]

    def reclaim(self, now_ms: float) -> list[ClientSession]:
        """Release rows whose client has been gone for longer than the grace period and whose records are all done.

        Returns the sessions whose grace period is over (their outcomes are released). A row is released by a
        later call, once no entry in the journal names it.
        """
        over: list[ClientSession] = []
        for index, since_ms in list(self._gone_since_ms.items()):
            if now_ms - since_ms < self.grace_ms:
                continue
            row = self._rows[index]
            if self.by_row[index].unsettled_records:
                over.append(self.by_row[index])
                continue
            del self._gone_since_ms[index]
            over.append(self.by_row.pop(index))
            self._release(row)
        return over

    def _keep(self, row: ClientRow) -> None:
        self._rows[row.index] = self._by_client_id[row.client_id] = row
        self._places.keep(row.pid)

    def _release(self, row: ClientRow) -> None:
        del self._rows[row.index]
        if self._by_client_id.get(row.client_id) is row:
            del self._by_client_id[row.client_id]
        self._places.release(row.pid)
        row.release()

    def _forget(self, row: ClientRow) -> None:
        """Release a blank row, on which no client depends."""
        session = self.by_row.pop(row.index)
        session.attached = False
        self.by_routing_id.pop(session.routing_id, None)
        self._gone_since_ms.pop(row.index, None)
        self._release(row)

    def _count(self) -> None:
        self._counters.set("clients_connected", len(self.by_routing_id))


def welcome(session: ClientSession, known: bool, worker_epoch: int, limits: dict[str, int]) -> list[Any]:
    """WELCOME: the state of every stream of this client, from which the stub knows what to send again."""
    streams = [
        [stream, state.topic_queue.topic, state.accepted, state.held]
        for stream, state in session.streams.items()
    ]
    return [
        Kind.WELCOME,
        worker_epoch,
        session.row.secret,
        known,
        session.credit_bytes,
        limits,
        streams,
    ]
