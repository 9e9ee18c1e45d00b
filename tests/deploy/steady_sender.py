"""A client at a steady rate, for a process inside a container or a booted tree: imports the stub alone.

``python steady_sender.py RUN_DIR TOPIC RECORDS_A_SECOND SECONDS`` says "delivering" on stderr once it does, and prints
one JSON object at its end: tests/deploy/outcome.py compares it with the topic.
"""

from __future__ import annotations

import json
import sys
import time
from itertools import pairwise
from typing import Any

from client_stub import Producer

DELIVERING = "delivering"


def main(run_dir: str, topic: str, rate: float, seconds: float) -> None:
    failed: list[tuple[int, str, bool]] = []
    delivered_s: list[float] = []
    producer = Producer(run_dir=run_dir, client_name="steady", max_block_ms=60_000)

    def on_delivery(error: Any, number: int) -> None:
        """Runs in the stub's thread alone."""
        if error is not None:
            failed.append((number, str(error), int(getattr(error, "persistence", 0)) != 0))
            return
        if not delivered_s:
            print(DELIVERING, file=sys.stderr, flush=True)
        delivered_s.append(time.monotonic())

    begun_s = time.monotonic()
    sent = 0
    while sent < rate * seconds:
        ahead_s = sent / rate - (time.monotonic() - begun_s)
        if ahead_s > 0:
            time.sleep(ahead_s)  # the rate is the point
            continue

        def done(error: Any, metadata: Any, number: int = sent) -> None:
            on_delivery(error, number)

        producer.send(topic, value=f"steady/{sent}|".encode(), on_delivery=done)
        sent += 1
    producer.flush(timeout=90)
    producer.close()
    silences = [later - earlier for earlier, later in pairwise(sorted(delivered_s))]
    report = {
        "sent": sent,
        "delivered": len(delivered_s),
        "failed": failed,
        "longest_silence_s": round(max(silences, default=0.0), 3),
    }
    print(json.dumps(report), flush=True)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], float(sys.argv[3]), float(sys.argv[4]))
