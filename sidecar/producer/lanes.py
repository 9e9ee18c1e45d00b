"""Lanes: with a producer id or without. All records of one topic use one lane."""

from __future__ import annotations

from typing import Final

IDEMPOTENT_LANE: Final = 0
"""acks=all under the worker's producer id: in order and without duplicates per partition."""
PLAIN_LANE: Final = 1
"""acks 0 or 1 (or all with enable.idempotence=false): no producer id, so a retry may duplicate records."""
LANES: Final = (IDEMPOTENT_LANE, PLAIN_LANE)
LANES_FROM: Final = ((IDEMPOTENT_LANE, PLAIN_LANE), (PLAIN_LANE, IDEMPOTENT_LANE))
"""All lanes in order of turn, indexed by the lane that goes first."""

ACKS_ALL: Final = -1
NO_SEQUENCE: Final = -1
SEQUENCE_MASK: Final = 0x7FFFFFFF
"""Sequences count records modulo 2**31 (DefaultRecordBatch.incrementSequence)."""
EPOCH_MAX: Final = 32_767
