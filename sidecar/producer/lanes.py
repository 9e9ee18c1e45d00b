"""Lanes: with a producer id or without, and one for each transactional id.

Outside of transactions, all records of one topic use one lane.
"""

from __future__ import annotations

from typing import Final

IDEMPOTENT_LANE: Final = 0
"""acks=all under the worker's producer id: in order and without duplicates per partition."""
PLAIN_LANE: Final = 1
"""acks 0 or 1 (or all with enable.idempotence=false): no producer id, so a retry may duplicate records."""
LANES: Final = (IDEMPOTENT_LANE, PLAIN_LANE)
"""The lanes that every worker has."""
TRANSACTIONAL: Final = 2
"""Lanes from this number on have a transactional id each, and are made and closed while the worker runs. At a broker
they have one turn together, in which each request takes another of them.
"""
TURNS_FROM: Final = ((0, 1, TRANSACTIONAL), (1, TRANSACTIONAL, 0), (TRANSACTIONAL, 0, 1))
"""All turns in order, indexed by the one that goes first."""

ACKS_ALL: Final = -1
NO_SEQUENCE: Final = -1
SEQUENCE_MASK: Final = 0x7FFFFFFF
"""Sequences count records modulo 2**31 (DefaultRecordBatch.incrementSequence)."""
EPOCH_MAX: Final = 32_767
