"""Latency as a user sees it: records are due at fixed times, whatever the state of earlier ones.

A record's latency counts from the moment it was *due*, not from the call that sent it. So a producer that blocks its
caller pays for every record that was due in that time (no coordinated omission; Tene, "How NOT to measure latency").
"""

from __future__ import annotations

import time
from array import array
from dataclasses import dataclass

from sidecar.tools.bench.peers.peer import Done, TimedPeer
from sidecar.tools.bench.workload import Workload

SAMPLES_PER_S_MAX = 5_000
"""Above this rate every k-th record is timed; all are sent and waited for."""
TICK_S = 0.001
WARM_UP_SHARE = 0.2
"""The first part of a run fills caches and settles; it is sent but not counted."""


@dataclass(frozen=True)
class Rhythm:
    """``records_per_s`` from one process for ``seconds``."""

    records_per_s: float
    seconds: float


def run_open_loop(peer: TimedPeer, workload: Workload, rhythm: Rhythm) -> tuple[list[int], float]:
    """(microseconds from due to outcome of the sampled records, records per second that were really sent).

    Raises RuntimeError for a record that failed.
    """
    records = workload.make()
    count = len(records)
    total = int(rhythm.records_per_s * rhythm.seconds)
    every = max(1, int(rhythm.records_per_s / SAMPLES_PER_S_MAX))
    skipped = int(total * WARM_UP_SHARE)
    clock = time.monotonic
    found = array("q")
    errors: list[object] = []
    start = clock()

    def ignore(error: object, _metadata: object) -> None:
        if error is not None:
            errors.append(error)

    def timed(due: float) -> Done:
        def done(error: object, _metadata: object) -> None:
            if error is not None:
                errors.append(error)
            else:
                found.append(int((clock() - due) * 1e6))

        return done

    topic, send, serve = workload.topic, peer.send, peer.serve
    number = 0
    while number < total:
        due_count = min(total, int((clock() - start) * rhythm.records_per_s) + 1)
        while number < due_count:
            key, value = records[number % count]
            if number >= skipped and number % every == 0:
                send(topic, key, value, timed(start + number / rhythm.records_per_s))
            else:
                send(topic, key, value, ignore)
            number += 1
        # A high rate is sent in ticks, on both sides: waking for each record would itself be the load.
        serve(max(TICK_S, start + number / rhythm.records_per_s - clock()))
    sent_per_s = total / max(clock() - start, rhythm.seconds)
    peer.flush()
    if errors:
        raise RuntimeError(f"a record was not delivered: {errors[0]}")
    return found.tolist(), sent_per_s


def run_one_by_one(peer: TimedPeer, workload: Workload) -> list[int]:
    """Microseconds of send, flush and outcome, for one record at a time."""
    records = workload.make()
    count = len(records)
    errors: list[object] = []
    outcomes = 0

    def done(error: object, _metadata: object) -> None:
        nonlocal outcomes
        outcomes += 1
        if error is not None:
            errors.append(error)

    found = array("q")
    for number in range(workload.records):
        key, value = records[number % count]
        start = time.monotonic()
        peer.send(workload.topic, key, value, done)
        peer.flush()
        found.append(int((time.monotonic() - start) * 1e6))
    if errors or outcomes != workload.records:
        raise RuntimeError(f"{outcomes} of {workload.records} outcomes; {errors[:1]}")
    return found.tolist()
