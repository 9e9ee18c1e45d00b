"""Counts TCP connections to the brokers in the kernel's own list."""

from __future__ import annotations

import threading
from collections.abc import Iterable
from pathlib import Path
from types import TracebackType

ESTABLISHED = "01"
SAMPLE_S = 0.01


def count_connections(ports: Iterable[int]) -> int:
    """Established connections of this network namespace whose remote port is one of ``ports``.

    Only the remote side is compared, so a connection within this machine counts once, and remote brokers count, too.
    """
    wanted = {f"{port:04X}" for port in ports}
    found = 0
    for table in ("/proc/net/tcp", "/proc/net/tcp6"):
        path = Path(table)
        if not path.exists():
            continue
        for line in path.read_text().splitlines()[1:]:
            fields = line.split(maxsplit=4)
            if fields[3] == ESTABLISHED and fields[2].rpartition(":")[2] in wanted:
                found += 1
    return found


class ConnectionPeak:
    """The most connections seen at once inside the block, sampled every 10 ms by a thread."""

    def __init__(self, ports: Iterable[int]) -> None:
        self._ports = tuple(ports)
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._sample, name="connection-peak", daemon=True)
        self.peak = 0

    def _sample(self) -> None:
        while not self._done.wait(SAMPLE_S):
            self.peak = max(self.peak, count_connections(self._ports))

    def __enter__(self) -> ConnectionPeak:
        self.peak = count_connections(self._ports)
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._done.set()
        self._thread.join()
