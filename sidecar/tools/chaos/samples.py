"""Sampler of a soak: memory, descriptors and threads of each process, the segment's tables, the probe's latency."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from sidecar.shm.chain_table import ChainTable
from sidecar.shm.descriptors import DescriptorTable
from sidecar.shm.segment import Segment
from sidecar.tools.chaos.faults import children
from sidecar.tools.chaos.probe import LatencyReader
from sidecar.tools.chaos.side_thread import SideThread
from sidecar.tools.chaos.workload import Workload
from sidecar.tools.testing.daemon import SidecarDaemon
from sidecar.tools.testing.process_stats import anonymous_rss_mb

CALM_AFTER_S = 4.0
"""How long after a disturbance the probe's latency is still affected by it."""
_WORD_BYTES = 8


@dataclass(frozen=True)
class ProcessSample:
    role: str
    pid: int
    rss_mb: float
    """Anonymous memory: without the segment, and without a client's mapped journal, which grows by design."""
    fds: int
    threads: int


class Tables(NamedTuple):
    """Numbers of used places in the segment's tables."""

    pages: int
    client_rows: int
    chain_rows: int
    batch_descriptors: int


@dataclass(frozen=True)
class Sample:
    at_s: float
    """Seconds since the start."""
    is_calm: bool
    """Whether nothing was killed or restarted in its time or shortly before."""
    sent: int
    tables: Tables
    processes: list[ProcessSample]
    p50_ms: float | None
    """Percentiles of the probe's records in its time; None without any."""
    p99_ms: float | None


@dataclass
class Sampler:
    """Samples in its own thread, as a restart of a broker blocks the main one."""

    daemon: SidecarDaemon
    workload: Workload
    probe: int
    """The index of the probe's place."""
    resident: int
    """The index of the place of the client that stays."""
    every_s: float
    samples: list[Sample] = field(default_factory=list)
    errors: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._segment = Segment.attach(Path(self.daemon.info()["segment"]))
        self._start_s = time.monotonic()
        self._disturbed_until_s = self._start_s
        self._disturbances = 0
        self.thread = SideThread("soak-sampler", self._run)

    def close(self) -> None:
        self.thread.stop()
        self._segment.close()

    @contextlib.contextmanager
    def disturbance(self) -> Iterator[None]:
        """For the main thread: mark the time of the block, and shortly after, as not calm."""
        self._disturbances += 1
        try:
            yield
        finally:
            self._disturbed_until_s = time.monotonic() + CALM_AFTER_S
            self._disturbances -= 1

    def tables(self) -> Tables:
        """The places in use now; other processes write the tables at the same time."""
        segment, places = self._segment, self._segment.layout
        words = bytes(segment.view[places.client_words :][: _WORD_BYTES * places.clients_max])
        slots = segment.prepared_slots()
        return Tables(
            pages=int(sum(segment.slot(slot).counters.get("buffer_pages_taken") for slot in slots)),
            client_rows=sum(state != 0 for state in words[::_WORD_BYTES]),
            chain_rows=sum(len(ChainTable(segment, slot)) for slot in slots),
            batch_descriptors=sum(
                table.capacity - table.free_count
                for table in (DescriptorTable(segment, slot) for slot in slots)
            ),
        )

    def _run(self, end: threading.Event) -> None:
        latencies = LatencyReader(self.workload.at(self.probe).journal.path)
        from_s = time.monotonic()
        while not end.wait(max(0.0, from_s + self.every_s - time.monotonic())):
            now_s = time.monotonic()
            is_calm = not self._disturbances and self._disturbed_until_s <= from_s
            found = sorted(latencies.read())
            try:
                self.samples.append(
                    Sample(
                        round(now_s - self._start_s, 2),
                        is_calm,
                        self.workload.sent,
                        self.tables(),
                        list(self._processes()),
                        _percentile_ms(found, 0.50),
                        _percentile_ms(found, 0.99),
                    )
                )
            except (OSError, ValueError, KeyError) as error:
                self.errors.append(f"a sample at {now_s - self._start_s:.0f} s failed: {error!r}")
            from_s = now_s

    def _processes(self) -> Iterator[ProcessSample]:
        assert self.daemon.process is not None
        controller = self.daemon.process.pid
        workers = {int(each["pid"]): f"worker {each['index']}" for each in self.daemon.info()["workers"]}
        named = {
            "controller": controller,
            "resident client": self.workload.at(self.resident).process.pid,
            "probe": self.workload.at(self.probe).process.pid,
        }
        roles = {pid: role for role, pid in named.items()}
        roles |= {pid: workers.get(pid, "standby") for pid in children(controller)}
        for pid, role in roles.items():
            with contextlib.suppress(OSError):  # it has just been killed
                yield process_sample(role, pid)


def process_sample(role: str, pid: int) -> ProcessSample:
    """A sample of one process. Raises OSError for a process that is gone."""
    fds, threads = (len(list(Path(f"/proc/{pid}/{name}").iterdir())) for name in ("fd", "task"))
    return ProcessSample(role, pid, round(anonymous_rss_mb(pid), 3), fds, threads)


def _percentile_ms(ordered_s: Sequence[float], share: float) -> float | None:
    """A percentile in ms by nearest rank; None without values."""
    if not ordered_s:
        return None
    rank = min(len(ordered_s) - 1, int(share * len(ordered_s)))
    return round(ordered_s[rank] * 1e3, 3)
