"""SimTheme: what the parameters of a run are drawn from.

Most runs draw everything from everything. A rule that only matters when five things come together is hardly ever met
so. Each of the other themes brings those together for one rule, and draws the rest.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import inf
from typing import Final

from sidecar.producer.broker_memory import IDLE_MS, TIMESTAMP_AGE_MS

NEVER_MS: Final = inf
SANE_MS: Final = TIMESTAMP_AGE_MS + IDLE_MS + 1_000.0
"""The shortest expiration that the producer's rules are made for: a batch may be under way for a second."""
TINY_MS: Final = (30.0, 300.0, 2_500.0)
"""Shorter than records may wait, or than a batch may be under way: nobody can keep order or prevent doubles there, but
what is told must still be true."""


@dataclass(frozen=True)
class SimTheme:
    """Each field has the values that one of is drawn. ``cut_weight`` and ``anew_weight``: how often a connection is
    cut, and the topic recreated, beside the other kinds of faults."""

    idempotent: tuple[bool, ...] = (True, True, True, False)
    partitions: tuple[int, ...] = (1, 2, 3, 4)
    fault_rates: tuple[float, ...] = (0.0, 0.02, 0.1, 0.3)
    records_max: tuple[int, ...] = (3, 5, 1000, 1000)
    expirations_ms: tuple[float, ...] = (NEVER_MS,) * 6 + (SANE_MS,) * 6 + TINY_MS
    checks_ms: tuple[float, ...] = (0.0, 20.0, 500.0)
    has_topic_ids: tuple[bool, ...] = (True, False)
    loses_ids: tuple[bool, ...] = (True, False)
    when_unknown: tuple[str, ...] = ("resend", "fail")
    bad_rates: tuple[float, ...] = (0.0, 0.0, 0.03)
    keyless_rates: tuple[float, ...] = (0.0, 0.0, 0.1)
    old_rates: tuple[float, ...] = (0.0, 0.0, 0.1, 1.0)
    lingers_ms: tuple[float, ...] = (0.0, 5.0, 40.0)
    batch_sizes: tuple[int, ...] = (0, 361, 861)
    in_flight: tuple[int, ...] = (1, 2, 5)
    delivery_ms: tuple[float, ...] = (700.0, 3_000.0, 120_000.0)
    codecs_ms: tuple[float, ...] = (0.0, 0.0, 5.0, 300.0)
    gaps_ms: tuple[float, ...] = (0.0, 1.0, 20.0, 200.0)
    """Between two submissions, at most."""
    stall_rate: float = 0.1
    """Of the faults of an answer, those that it never comes."""
    cut_weight: int = 1
    anew_weight: int = 1
    is_only_short: bool = False
    """All that goes wrong, beside what the weights bring, is that partitions lack replicas."""


EVERYTHING: Final = SimTheme()
BACKFILL: Final = SimTheme(
    idempotent=(True,),
    partitions=(1, 2),
    fault_rates=(0.1, 0.3),
    records_max=(1000,),
    expirations_ms=(SANE_MS,),
    checks_ms=(0.0,),
    has_topic_ids=(True,),
    loses_ids=(False,),
    when_unknown=("fail",),
    old_rates=(0.3, 1.0),
    lingers_ms=(0.0,),
    batch_sizes=(0, 361),
    in_flight=(5,),
)
"""Old timestamps under load, and a broker that forgets at each look."""
RECREATED: Final = SimTheme(
    idempotent=(True,),
    partitions=(1, 2),
    fault_rates=(0.1, 0.3),
    records_max=(1000,),
    expirations_ms=(NEVER_MS,),
    has_topic_ids=(True,),
    loses_ids=(False,),
    bad_rates=(0.0,),
    keyless_rates=(0.0,),
    old_rates=(0.0,),
    lingers_ms=(0.0,),
    batch_sizes=(0, 361),
    in_flight=(5,),
    codecs_ms=(0.0,),
    gaps_ms=(0.0, 0.0, 0.0, 0.0, 800.0),
    cut_weight=0,
    anew_weight=10,
    is_only_short=True,
)
"""The topic is recreated under load, again and again. Nothing else brings batches into doubt, sets records apart or
delays a request: what belongs to the old topic could then go to the new one, and overtake others."""
LOST_TWICE: Final = SimTheme(
    idempotent=(True,),
    partitions=(1,),
    fault_rates=(0.3,),
    records_max=(1000,),
    expirations_ms=(NEVER_MS,),
    loses_ids=(True,),
    old_rates=(0.0,),
    lingers_ms=(0.0,),
    batch_sizes=(0, 361),
    in_flight=(5,),
    delivery_ms=(3_000.0,),
    codecs_ms=(0.0,),
    stall_rate=0.4,
    cut_weight=3,
)
"""Answers are lost, and then the broker loses the id: what it lacks and what it has forgotten look alike."""
SMALLER: Final = SimTheme(
    idempotent=(True,),
    partitions=(1, 2),
    fault_rates=(0.1, 0.3),
    records_max=(3, 5),
    expirations_ms=(NEVER_MS,),
    old_rates=(0.0,),
    batch_sizes=(861,),
    in_flight=(2, 5),
    delivery_ms=(120_000.0,),
    cut_weight=10,
)
"""Batches in doubt that turn out to be too large."""
THEMES: Final = (
    EVERYTHING,
    EVERYTHING,
    BACKFILL,
    EVERYTHING,
    RECREATED,
    EVERYTHING,
    LOST_TWICE,
    EVERYTHING,
    SMALLER,
)
"""By seed, in turn."""
