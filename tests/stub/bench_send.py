"""Cost of send(), send_many() and completed callbacks in the caller's process, without a daemon's share.

``python -m tests.stub.bench_send [RECORDS]``; KAFKA_SIDECAR_PURE_STUB=1 for the path in pure Python. The caller's
loop alone is measured too and taken off. The daemon is scripted and runs in another process.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from client_stub import Producer
from client_stub.hot import OpenStream, native, run_callbacks
from client_stub.outbox import Outbox
from client_stub.queued_outbox import QueuedOutbox
from client_stub.submission import Submission

ROUNDS = 5
PAIRS = [(b"key-%012d" % n, (b"value-%06d-" % n).ljust(100, b"x")) for n in range(10_000)]
CHUNK = 8_000
"""Records of one submission, about what a MiB holds."""


def best(run: Callable[[], int]) -> float:
    """Least microseconds a record, over rounds of ``run() -> records``."""
    found = []
    for _ in range(ROUNDS):
        start = time.perf_counter()
        records = run()
        found.append((time.perf_counter() - start) * 1e6 / records)
    return min(found)


class _Detached(QueuedOutbox if native is None else Outbox):  # type: ignore[misc]
    """An outbox that is always attached; gathered records are thrown away when a caller looks for room."""

    def wait_for_room(self, stream: OpenStream) -> None:
        if native is not None or len(self._inbox) > CHUNK:
            sealed, _ = self.gather(lambda topic: False)
            self.settle(sealed, (), is_news=False)
            self.pending.clear()


def detached_producer() -> Producer:
    """A producer without an io thread: only the caller's part of the work."""
    producer = Producer("/nowhere", "bench")
    outbox = _Detached(max_block_ms=0, connect_timeout_ms=0, path="")
    outbox.attached_once = True
    producer._outbox = outbox
    producer._streams = outbox.streams
    outbox.open_stream("t")
    return producer


def told(error: object, metadata: object) -> None:
    pass


def caller_costs() -> dict[str, float]:
    producer = detached_producer()
    send, rounds = producer.send, len(PAIRS) * 10

    def loop() -> int:
        for number in range(rounds):
            _key, _value = PAIRS[number % 10_000]
        return rounds

    def with_callback() -> int:
        for number in range(rounds):
            key, value = PAIRS[number % 10_000]
            send("t", value=value, key=key, on_delivery=told)
        return rounds

    def own_callbacks() -> int:
        for number in range(rounds):
            key, value = PAIRS[number % 10_000]
            send("t", value=value, key=key, on_delivery=lambda error, metadata: None)
        return rounds

    def plain() -> int:
        for number in range(rounds):
            _key, value = PAIRS[number % 10_000]
            send("t", value)
        return rounds

    def many() -> int:
        for _ in range(10):
            producer.send_many("t", PAIRS)
        return rounds

    floor = best(loop)
    costs = {
        "loop alone": floor,
        "send(callback)": best(with_callback) - floor,
        "send(own callback each)": best(own_callbacks) - floor,
        "send(value)": best(plain) - floor,
        "send_many": best(many),
    }
    producer._outbox.closed = True
    return costs


def completion_costs() -> dict[str, float]:
    outbox = _Detached(max_block_ms=0, connect_timeout_ms=0, path="")
    submission = Submission(outbox, "t", None, 0, 0)
    submission.count = CHUNK
    every = (1 << CHUNK) - 1
    sixth = sum(1 << n for n in range(0, CHUNK, 6))
    kept: list[Any] = []

    def run(callback: Any, mask: int) -> Callable[[], int]:
        def once() -> int:
            kept.clear()
            submission.callback = callback
            for _ in range(10):
                run_callbacks(submission, "t", mask, mask, 0, 1 << 40, 1 << 40, None, None, lambda: None)
            return 10 * mask.bit_count()

        return once

    return {
        "complete (all)": best(run(told, every)),
        "complete (every sixth)": best(run(told, sixth)),
        "complete (metadata kept)": best(run(lambda error, metadata: kept.append(metadata), every)),
    }


def end_to_end(records: int) -> float:
    """Records a second, sent and called back, against the scripted daemon in another process."""
    from tests.stub.fake_daemon import FakeDaemon

    run_dir = Path(tempfile.mkdtemp(prefix="ks-", dir="/tmp"))
    ready, ready_in = os.pipe()
    stop_out, stop = os.pipe()
    child = os.fork()
    if not child:
        daemon = FakeDaemon(run_dir)
        os.write(ready_in, b"1")
        os.read(stop_out, 1)
        daemon.stop()
        os._exit(0)
    try:
        os.read(ready, 1)
        acked = 0

        def count(error: object, metadata: object) -> None:
            nonlocal acked
            acked += 1

        with Producer(run_dir, "bench") as producer:
            producer.send("t", b"warm").result(10)
            start = time.perf_counter()
            for number in range(records):
                key, value = PAIRS[number % 10_000]
                producer.send("t", value=value, key=key, on_delivery=count)
            producer.flush(60)
            seconds = time.perf_counter() - start
        assert acked == records
        return records / seconds
    finally:
        os.write(stop, b"1")
        os.waitpid(child, 0)
        shutil.rmtree(run_dir, ignore_errors=True)


def main() -> None:
    records = int(sys.argv[1]) if len(sys.argv) > 1 else 1_000_000
    figures: dict[str, Any] = {"path": "pure" if native is None else "native"}
    figures["records/s against the scripted daemon"] = round(end_to_end(records))
    for name, cost in (caller_costs() | completion_costs()).items():
        figures[f"{name}, us"] = round(cost, 4)
    print(json.dumps(figures, indent=1))


if __name__ == "__main__":
    main()
