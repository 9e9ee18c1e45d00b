"""The environment of the bench: a real broker, one that answers at once, daemons, and the addresses for each side."""

from __future__ import annotations

import contextlib
import json
import os
import platform
import subprocess
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sidecar.common.python_child import python_command
from sidecar.tools.bench.used_memory import use_memory
from sidecar.tools.bench.workload import Workload
from sidecar.tools.demo.steps import Steps
from sidecar.tools.testing.daemon import SidecarDaemon

TOPIC = "bench"
PARTITIONS = 6
POOL_BYTES = 128 << 20
WARNINGS_SHOWN = 5


@dataclass(frozen=True)
class Site:
    """One broker and the daemon in front of it."""

    bootstrap_servers: str
    daemon: SidecarDaemon

    @property
    def pids(self) -> list[int]:
        """Controller, then workers."""
        return [int(self.daemon.info()["pid"]), *self.daemon.worker_pids()]

    def target(self, kind: str) -> str:
        """The address that a peer of that kind connects to."""
        return str(self.daemon.run_dir) if kind.startswith("sidecar") else self.bootstrap_servers

    def timed_words(
        self, mode: str, side: str, workload: Workload, *, linger_ms: float = 5.0, **more: Any
    ) -> dict[str, Any]:
        """The order for a caller that times its records one by one."""
        return {
            "mode": mode,
            "kind": side,
            "target": self.target(side),
            "workload": workload.to_dict(),
            "linger_ms": linger_ms,
            **more,
        }

    @contextlib.contextmanager
    def explained(self) -> Iterator[None]:
        """Add the daemon's last warnings, which a caller does not see, to errors inside the block."""
        try:
            yield
        except RuntimeError as error:
            lines = [line for line in self.daemon.log_lines() if " WARNING " in line or " ERROR " in line]
            if not lines:
                raise
            last = "".join(lines[-WARNINGS_SHOWN:]).rstrip()
            raise RuntimeError(f"{error}\nThe daemon's last warnings:\n{last}") from error

    def pids_of(self, kind: str) -> list[int]:
        return self.pids if kind.startswith("sidecar") else []


@dataclass(frozen=True)
class Bed:
    """``topic`` has six partitions on ``site``'s broker. There are ``rounds`` runs of everything that is compared.

    ``is_embedded``: the broker is on this machine, and so is the memory of its log.
    """

    steps: Steps
    site: Site
    topic: str
    records: int
    rounds: int
    is_embedded: bool = False

    def before_run(self, log_bytes: int) -> None:
        """Give the broker's log of the next run used memory, for either side."""
        if self.is_embedded:
            use_memory(log_bytes)


@contextlib.contextmanager
def daemon_before(
    bootstrap_servers: str,
    settings: Mapping[str, object] | None = None,
    config: Path | None = None,
) -> Iterator[Site]:
    """A daemon with the bench's pool in front of that broker.

    ``config``: a file for configuration that -X cannot express, such as tables of clients.
    """
    with SidecarDaemon(
        bootstrap_servers,
        settings={"buffer.memory": POOL_BYTES, **(settings or {})},
        config=config,
    ) as daemon:
        yield Site(bootstrap_servers, daemon)


@contextlib.contextmanager
def null_broker(topics: Mapping[str, int]) -> Iterator[str]:
    """A null broker in its own process; yields its address."""
    process = subprocess.Popen(
        python_command("sidecar.tools.bench.null_broker", json.dumps(dict(topics))),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stdout is not None
        address = process.stdout.readline().strip()
        if not address:
            raise RuntimeError("the null broker did not start")
        yield address
    finally:
        process.kill()
        process.communicate()


def describe_machine() -> dict[str, Any]:
    """The machine and versions of a run."""
    model = next(
        (
            line.partition(":")[2].strip()
            for line in Path("/proc/cpuinfo").read_text().splitlines()
            if line.startswith("model name")
        ),
        platform.machine(),
    )
    memory_kb = int(Path("/proc/meminfo").read_text().split()[1])
    return {
        "cpus": len(os.sched_getaffinity(0)),
        "cpu": model,
        "memory_gb": round(memory_kb / 1e6),
        "kernel": platform.release(),
        "python": platform.python_version(),
    }
