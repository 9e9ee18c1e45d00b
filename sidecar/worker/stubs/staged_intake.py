"""StagedIntake: takes a SUBMIT of a stage, whose records wait in the journal until a transaction includes them.

Nothing else than the pool's free pages is waited for: a stage that finds its share of the pool full, or a record that
may not be sent, fails as a whole, because a commit that cannot come would free nothing. The submissions of a stage that
has failed are taken by position only.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from client_stub.contract.wire import STAGE_BIT, Format, LocalCode
from sidecar.common.condition import HoldCause
from sidecar.common.pauses import DRAINED_TEXT
from sidecar.kernel import records_from_columns
from sidecar.shm.stage_states import StageRowState
from sidecar.worker.streams.refusal import Refusal

if TYPE_CHECKING:
    from collections.abc import Callable

    from sidecar.kernel import Histogram
    from sidecar.shm.slots import Counters
    from sidecar.worker.streams.session import StreamState
    from sidecar.worker.streams.stage import LaneStage
    from sidecar.worker.stubs.holds import Holds
    from sidecar.worker.stubs.shares import Shares

_MSGPACK: Final = Format.MSGPACK


class StagedIntake:
    """Belongs to the worker's loop; the intake hands over what is of a stage."""

    def __init__(
        self,
        shares: Shares,
        holds: Holds,
        counters: Counters,
        submission_sizes: Histogram,
        clock_ahead_ms: float,
    ) -> None:
        self._shares = shares
        self._holds = holds
        self._counters = counters
        self._submission_sizes = submission_sizes
        self._clock_ahead_ms = clock_ahead_ms
        self.takes_records = True
        self.fail: Callable[[LaneStage, Refusal], None]
        """Fails a stage. Set where the worker is built."""
        self.evict: Callable[[LaneStage, float], bool]
        """Drops a stage of another owner for this one. False: there is none. Set likewise."""

    def accept(
        self,
        stream: StreamState,
        fields: list[Any],
        payload: Any,
        refusal: Refusal | None,
        now_ms: float,
        number: int,
    ) -> bool:
        """Append a checked SUBMIT of its client's stage ``number`` to the journal, or hold its stream: then False."""
        _, _, seq, _, base_timestamp_ms, format_, flags, count = fields
        session, queue = stream.session, stream.topic_queue
        stage = (session.stages or {}).get(number)
        if stage is None or stage.state is not StageRowState.OPEN:
            self._take_position(stream, seq)
            return True
        if not self.takes_records:
            self._holds.hold_closed(stream, HoldCause.PAUSED, DRAINED_TEXT, now_ms)
            return False
        stream.awaited = None
        for rate in filter(None, (queue.rate, session.rate)):
            over = rate.refusal(now_ms)
            if over is not None:
                self._holds.hold_until(stream, HoldCause.RATE, over, now_ms)
                return False
        needed, content = 0, payload
        if refusal is None:
            content = payload if format_ == _MSGPACK else records_from_columns(payload, count)
            needed = queue.chain.pages_needed(count, len(content))
            refusal = self._refusal_of(stage, stream, needed, now_ms)
        if refusal is not None:
            self._counters.inc("submissions_refused_total")
            self.fail(stage, refusal)
            self._take_position(stream, seq)
            return True
        if needed and not self._holds.link_staged(stream, queue, needed, now_ms):
            return False
        entry = queue.chain.append(
            content,
            count=count,
            client_row=session.row.index,
            client_generation=session.row.generation,
            stream=stream.stream,
            seq=seq,
            base_timestamp_ms=base_timestamp_ms,
            format=_MSGPACK,
            flags=flags,
            txn_number=STAGE_BIT | stage.number,
            accepted_ms=now_ms + self._clock_ahead_ms,
        )
        stage.took(queue, entry)
        if needed:
            self._shares.count(queue, now_ms)
        self._take_position(stream, seq)
        # kill point: stage.position
        queue.last_used_ms = now_ms
        self._counters.add(
            {
                "submissions_total": 1,
                "records_accepted_total": count,
                "bytes_accepted_total": len(content),
                "records_staged": count,
            }
        )
        self._submission_sizes.observe(len(content))
        for rate in filter(None, (queue.rate, session.rate)):
            rate.charge(count, len(content), now_ms)
        return True

    def _refusal_of(
        self, stage: LaneStage, stream: StreamState, needed: int, now_ms: float
    ) -> Refusal | None:
        """Why an entry that needs these pages fails its stage; None if its share is claimed."""
        if needed > self._holds.pages_max:
            text = (
                f"A submission of {needed} pages does not fit into the buffer pool, of which a worker has "
                f"{self._holds.pages_max} at most: raise buffer.memory."
            )
            return Refusal(LocalCode.RECORD_TOO_LARGE, text)
        while needed and not self._shares.claim_staged(needed):
            if not self.evict(stage, now_ms):
                text = (
                    f'Stage {stage.caller_number} of "{stage.lane.manager.transactional_id}" has no more space: stages '
                    f"hold {self._shares.staged_everywhere} of {self._shares.staged_bytes_max} bytes "
                    "(pool.staged_share). Include or drop some, or raise buffer.memory."
                )
                return Refusal(LocalCode.STAGE_FULL, text)
        return None

    @staticmethod
    def _take_position(stream: StreamState, seq: int) -> None:
        """Note that a submission has come. Of a stage that has failed it is all that is noted."""
        session = stream.session
        stream.awaited = None
        stream.position = stream.accepted = seq
        session.row.store_position(stream.stream, seq)
        session.accepted_streams.add(stream)
