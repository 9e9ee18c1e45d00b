"""Measures how long no records flow after a worker was killed, by the number of submissions of one record in its slot.

A real daemon starts on a segment full of them, with a broker that takes requests and does not answer. Then its worker
is killed with SIGKILL. The result is the time until the broker has the first Produce request of the next worker.
"""

from __future__ import annotations

import os
import signal
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import msgpack

from sidecar.kernel import StickyPartitioner, index_run
from sidecar.producer.lanes import IDEMPOTENT_LANE
from sidecar.shm.buffer_pool import BufferPool
from sidecar.shm.chain_table import ChainTable
from sidecar.shm.layout import PAGE_HEADER_BYTES
from sidecar.shm.segment import Segment
from sidecar.tools.bench.measurement import Results
from sidecar.tools.demo.steps import Steps
from sidecar.tools.testing.daemon import SidecarDaemon
from sidecar.tools.testing.fake_broker import FakeBroker
from sidecar.tools.testing.fault_rules import ALWAYS, on
from sidecar.tools.testing.kafka_frames import Api
from sidecar.tools.testing.waiting import wait_until

SECTION: Final = "adoption"
SUBMISSIONS: Final = (250_000, 1_000_000, 4_200_000)
"""The last number fills a pool of 1 GiB."""
ENTRY_BYTES: Final = 256
PAGE_BYTES: Final = 16_384
RUN_ENTRIES: Final = 65_536
TOPIC: Final = "backlog"
PARTITIONS: Final = 6
CLIENTS: Final = 50
PAYLOAD: Final[bytes] = msgpack.packb([None, b"v" * 170])
WAIT_S: Final = 300.0
PLACE_BYTES_MAX: Final = 1 << 20


def fill_slot(
    path: Path, submissions: int, topic: str, partitions: int, *, is_placed: bool = True
) -> Segment:
    """Make the segment of a worker that died with this many submissions, none of them sent.

    Without ``is_placed`` their topic was not known yet.
    """
    pages = submissions * ENTRY_BYTES // (PAGE_BYTES - PAGE_HEADER_BYTES) + 64
    segment = Segment.create(
        path,
        page_bytes=PAGE_BYTES,
        buffer_memory_bytes=pages * PAGE_BYTES,
        clients_max=64,
        instance_id=b"bench",
    )
    segment.prepare_slot(0)
    segment.slot(0).claim(incarnation=1)
    pool = BufferPool(segment, incarnation=1, workers=1, slot=0)
    chain = ChainTable(segment, 0, incarnation=1).open(IDEMPOTENT_LANE, topic)
    assert chain is not None
    for seq in range(1, submissions + 1):
        needed = chain.pages_needed(1, len(PAYLOAD))
        if needed:
            taken = pool.take(needed)
            assert taken is not None
            chain.link_pages(taken)
        chain.append(
            PAYLOAD,
            count=1,
            client_row=seq % CLIENTS,
            client_generation=1,
            stream=1,
            seq=seq,
            base_timestamp_ms=1_700_000_000_000,
            format=1,
            flags=1,
        )
    if is_placed:
        partitioner = StickyPartitioner(partitions, range(partitions), PAGE_BYTES, 1)
        at = 0
        while ordinals := chain.ordinals(at, RUN_ENTRIES):
            index_run(chain, ordinals, partitioner, PLACE_BYTES_MAX)
            at = int.from_bytes(ordinals[-8:], sys.byteorder) + 1
    return segment


def measure_adoption(steps: Steps, results: Results) -> None:
    """For each size: the seconds from the kill to the first request, and the private memory per submission."""
    idle = _private_bytes_of_an_idle_worker()
    for submissions in SUBMISSIONS:
        with (
            steps.step(f"Adoption of {submissions:,} submissions of one record"),
            _left_behind(submissions) as path,
        ):
            seconds, private = _kill(path)
        per_submission = (private - idle) / submissions
        results.add(SECTION, f"first request at {submissions}", "sidecar", "s", [seconds], at=submissions)
        results.add(
            SECTION, f"private memory at {submissions}", "sidecar", "B", [per_submission], at=submissions
        )


@contextmanager
def _left_behind(submissions: int) -> Iterator[Path]:
    with tempfile.TemporaryDirectory(dir="/dev/shm") as folder:
        path = Path(folder) / "segment"
        fill_slot(path, submissions, TOPIC, PARTITIONS).close()
        yield path


def _kill(path: Path) -> tuple[float, int]:
    """(seconds without a request, private bytes of the next worker)."""
    with (
        FakeBroker({TOPIC: PARTITIONS}) as kafka,
        SidecarDaemon(
            kafka.bootstrap_servers,
            settings={"daemon.workers": 1, "pool.path": str(path), "buffer.memory": path.stat().st_size},
        ) as daemon,
    ):
        held = kafka.add(on(Api.PRODUCE, times=ALWAYS).hold())
        wait_until(lambda: held.hits > 0, "the backlog to be sent", timeout_s=WAIT_S)
        (worker,) = daemon.worker_pids()
        before = held.hits
        killed_s = time.monotonic()
        os.kill(worker, signal.SIGKILL)
        wait_until(lambda: held.hits > before, "records to flow again", timeout_s=WAIT_S, interval_s=0.01)
        seconds = time.monotonic() - killed_s
        (successor,) = daemon.worker_pids()
        private = _private_bytes(successor)
        daemon.kill()
    return seconds, private


def _private_bytes_of_an_idle_worker() -> int:
    with FakeBroker({TOPIC: PARTITIONS}) as kafka, SidecarDaemon(kafka.bootstrap_servers) as daemon:
        return _private_bytes(daemon.worker_pids()[0])


def _private_bytes(pid: int) -> int:
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("RssAnon:"):
            return int(line.split()[1]) << 10
    raise RuntimeError("this kernel does not tell RssAnon")
