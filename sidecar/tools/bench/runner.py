"""Runs calling processes together: all are connected before any begins, and they give one result."""

from __future__ import annotations

import contextlib
import json
import subprocess
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sidecar.common.python_child import python_command
from sidecar.tools.bench.caller import CallerResult
from sidecar.tools.bench.workload import Workload
from sidecar.tools.testing.process_stats import cpu_seconds


@dataclass(frozen=True)
class Throughput:
    """The result of all callers together, from the first one's start to the last one's end."""

    records_per_s: float
    mb_per_s: float
    caller_cpu_us: float
    total_cpu_us: float
    """CPU of callers and daemon, without the broker's."""
    rss_mb: float
    """The memory of one caller at its end, the median."""


def run_throughput(
    kind: str,
    target: str,
    workload: Workload,
    *,
    callers: int = 1,
    producers: int = 1,
    daemon_pids: Sequence[int] = (),
    before_go: Callable[[int], None] = lambda log_bytes: None,
) -> Throughput:
    """Let ``callers`` processes send ``workload`` each, spread over ``producers`` of their own. When all are ready,
    ``before_go`` is called with the bytes of all their records.

    Raises RuntimeError with the end of a caller's output.
    """
    words = {
        "mode": "throughput",
        "kind": kind,
        "target": target,
        "workload": workload.to_dict(),
        "producers": producers,
    }
    with started(words, callers) as processes:
        before_go(workload.records * workload.record_bytes * callers)
        before = cpu_seconds(daemon_pids)
        results = [CallerResult(**each) for each in go(processes)]
        daemon_s = cpu_seconds(daemon_pids) - before
    records = sum(each.records for each in results)
    acked = sum(each.acked for each in results)
    if acked < records:
        raise RuntimeError(f"{kind}: only {acked:,} of {records:,} records were acknowledged")
    seconds = max(each.ended_s for each in results) - min(each.started_s for each in results)
    caller_s = sum(each.cpu_s for each in results)
    return Throughput(
        acked / seconds,
        acked * workload.record_bytes / seconds / 1e6,
        caller_s * 1e6 / records,
        (caller_s + daemon_s) * 1e6 / records,
        sorted(each.rss_mb for each in results)[len(results) // 2],
    )


@contextlib.contextmanager
def started(words: Mapping[str, Any], callers: int = 1) -> Iterator[list[subprocess.Popen[str]]]:
    """Calling processes that are connected and wait; killed at the end if they still run."""
    processes = [
        subprocess.Popen(
            python_command("sidecar.tools.bench.caller", json.dumps(words)),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for _ in range(callers)
    ]
    try:
        for process in processes:
            assert process.stdout is not None
            if process.stdout.readline() != "ready\n":
                raise _failure(process)
        yield processes
    finally:
        for process in processes:
            if process.poll() is None:
                process.kill()
            process.communicate()


def go(processes: Sequence[subprocess.Popen[str]]) -> list[dict[str, Any]]:
    """Start all processes. Returns the result of each."""
    begin(processes)
    return [outcome(process) for process in processes]


def begin(processes: Sequence[subprocess.Popen[str]]) -> None:
    for process in processes:
        assert process.stdin is not None
        process.stdin.write("go\n")
        process.stdin.flush()


def outcome(process: subprocess.Popen[str]) -> dict[str, Any]:
    """The result of one process. Raises RuntimeError with the end of its output."""
    assert process.stdout is not None
    line = process.stdout.readline()
    if not line:
        raise _failure(process)
    found: dict[str, Any] = json.loads(line)
    return found


def _failure(process: subprocess.Popen[str]) -> RuntimeError:
    process.kill()
    _, text = process.communicate()
    return RuntimeError(f"a calling process of the bench failed: {text.strip()[-2000:]}")
