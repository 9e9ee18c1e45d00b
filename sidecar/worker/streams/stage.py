"""LaneStage: accepted records that wait for a transaction to include them. Plain state; no sockets, no clock."""

from __future__ import annotations

from array import array
from typing import TYPE_CHECKING, Final

from client_stub.contract.wire import STAGE_BIT
from sidecar.kernel import held_bytes
from sidecar.shm.stage_records import StageEnd
from sidecar.shm.stage_states import TRANSITIONS, StageRowEvent, StageRowState

if TYPE_CHECKING:
    from uuid import UUID

    from sidecar.kernel import Entry
    from sidecar.worker.streams.lane import Lane
    from sidecar.worker.streams.refusal import Refusal
    from sidecar.worker.streams.session import ClientSession
    from sidecar.worker.streams.topic_queue import TopicQueue

STAGE_NUMBER_MASK: Final = STAGE_BIT - 1


class LaneStage:
    """One stage. ``session`` is its client while that may still repeat something about it."""

    __slots__ = (
        "caller_number",
        "client_name",
        "client_number",
        "end",
        "entries",
        "failure",
        "lane",
        "name_digest",
        "number",
        "owner",
        "owner_digest",
        "records",
        "row",
        "session",
        "since_s",
        "size_bytes",
        "state",
        "token",
        "topic_ids",
        "user",
    )

    def __init__(
        self,
        lane: Lane,
        row: int,
        number: int,
        *,
        caller_number: int,
        client_number: int,
        owner_digest: int,
        name_digest: int,
        user: int,
    ) -> None:
        self.lane = lane
        self.row = row
        """Its row in the segment."""
        self.number = number
        """Its number in the slot, which its entries have."""
        self.caller_number = caller_number
        self.client_number = client_number
        self.owner = ""
        """As its client named it; "" if only the digest is known, after a worker's death."""
        self.owner_digest = owner_digest
        self.client_name = ""
        self.name_digest = name_digest
        self.user = user
        """uid of its client + 1; 0: not known."""
        self.session: ClientSession | None = None
        self.state = StageRowState.FREE
        self.end = StageEnd.NONE
        self.records = 0
        self.size_bytes = 0
        self.since_s = 0
        """When it was opened, then when it was sealed, wall clock."""
        self.token = b""
        self.failure: Refusal | None = None
        """Why nothing more is put into it, and it cannot be sealed."""
        self.entries: dict[TopicQueue, array[int]] = {}
        """Ordinals of its entries, by staged chain."""
        self.topic_ids: dict[TopicQueue, UUID | None] = {}
        """The id that each of its topics had at its first entry; none are known of a dead worker's."""

    def move(self, event: StageRowEvent) -> None:
        self.state = TRANSITIONS[self.state][event]

    def took(self, queue: TopicQueue, entry: Entry) -> None:
        """Note an entry that is in the journal."""
        self.add(queue, entry.ordinal, entry.count, held_bytes(entry.count, entry.payload_bytes))

    def add(self, queue: TopicQueue, ordinal: int, records: int, size_bytes: int) -> None:
        ordinals = self.entries.get(queue)
        if ordinals is None:
            ordinals = self.entries[queue] = array("Q")
            self.topic_ids[queue] = queue.topic_id
        ordinals.append(ordinal)
        self.records += records
        self.size_bytes += size_bytes

    def __repr__(self) -> str:
        return f"<LaneStage {self.number} of {self.lane.manager.transactional_id!r} {self.state.name}>"
