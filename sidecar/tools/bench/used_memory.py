"""Memory that has been used before, for the log of a broker on this machine.

On a virtual machine whose host takes free memory back (free page reporting, balloon), the first touch of a page costs
7 to 12 µs, and a page used recently costs 1.5. A broker's log takes 30,000 pages per million records. All of them are
new on a machine that is up for an hour, and none on one whose page cache is full. That is more CPU than the daemon and
its caller take together, and says nothing about any client.
"""

from __future__ import annotations

import tempfile
from pathlib import Path

SPARE = 2.5
"""Factor on the records' bytes, for their overhead and for other processes that take pages in the meantime."""
_CHUNK = bytes(1 << 20)


def use_memory(log_bytes: int) -> None:
    """Fill this much of the page cache and free it, so that the next file gets it; at most half of the available
    memory.
    """
    size_bytes = min(int(log_bytes * SPARE), _available_bytes() // 2)
    with tempfile.TemporaryFile(buffering=0) as file:  # memory of no file (mmap) is not what files get next
        for _ in range(size_bytes // len(_CHUNK)):
            file.write(_CHUNK)


def _available_bytes() -> int:
    lines = Path("/proc/meminfo").read_text().splitlines()
    found = (int(line.split()[1]) for line in lines if line.startswith("MemAvailable:"))
    return next(found) << 10
