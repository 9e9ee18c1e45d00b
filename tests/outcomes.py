"""The outcomes of a message, read in Python: what the stub's compiled reader is compared with."""

from __future__ import annotations

from client_stub.contract.wire import OUTCOME, OUTCOME_HEADER_BYTES, Outcome


def unpack_outcomes(buffer: bytes | memoryview) -> list[Outcome]:
    """Unpack every outcome in ``buffer``. Raises ValueError when their lengths do not add up."""
    outcomes: list[Outcome] = []
    position = 0
    while position < len(buffer):
        if len(buffer) - position < OUTCOME_HEADER_BYTES:
            raise ValueError(f"outcome cut short at byte {position} of {len(buffer)}")
        (
            length,
            kind,
            persistence,
            shape,
            _,
            number,
            stream,
            code,
            seq,
            partition,
            first_index,
            count,
            index_bytes,
            text_bytes,
            base_offset,
            append_time_ms,
        ) = OUTCOME.unpack_from(buffer, position)
        body = position + OUTCOME_HEADER_BYTES
        end = body + index_bytes + text_bytes
        if length % 8 or end > position + length or position + length > len(buffer):
            raise ValueError(f"outcome at byte {position} claims {length} bytes of {len(buffer)}")
        indexes = bytes(buffer[body : body + index_bytes])
        text = str(bytes(buffer[body + index_bytes : end]), "utf-8", "replace") if text_bytes else ""
        outcomes.append(
            Outcome(
                kind,
                persistence,
                shape,
                number,
                stream,
                code,
                seq,
                partition,
                first_index,
                count,
                base_offset,
                append_time_ms,
                indexes,
                text,
            )
        )
        position += length
    return outcomes
