"""Lanes: one producer identity each. Records of one topic go through one lane."""

from __future__ import annotations

from typing import Final

IDEMPOTENT_LANE: Final = 0
"""acks=all under the worker's producer id: order and no doubles per partition."""
PLAIN_LANE: Final = 1
"""acks 0 or 1 (or all with enable.idempotence=false): no producer id; a retry may double."""
LANES: Final = (IDEMPOTENT_LANE, PLAIN_LANE)
LANES_FROM: Final = ((IDEMPOTENT_LANE, PLAIN_LANE), (PLAIN_LANE, IDEMPOTENT_LANE))
"""All lanes, beginning with the one of that number."""

ACKS_ALL: Final = -1
NO_SEQUENCE: Final = -1
SEQUENCE_MASK: Final = 0x7FFFFFFF
"""Sequences count records modulo 2**31 (DefaultRecordBatch.incrementSequence)."""
EPOCH_MAX: Final = 32_767
