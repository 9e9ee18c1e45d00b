"""Latency of a good client beside six hostile processes, and beside six that only take the same CPU.

The attackers share the cores with the good client, as any busy neighbour would. So there is a control: six processes
that take the same CPU and never connect to the daemon. The difference to the control is the daemon's work for the
attackers.

Each attack runs once before anything is measured. A broker that meets it for the first time compiles code for it,
which takes some seconds of the JVM's C2 threads on the same cores. A broker that has been up for a minute does not.
"""

from __future__ import annotations

import contextlib
import subprocess
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from sidecar.common.python_child import python_command
from sidecar.tools.bench.bed import Bed, Site, daemon_before
from sidecar.tools.bench.latency import add_percentiles
from sidecar.tools.bench.measurement import Results
from sidecar.tools.bench.runner import go, started
from sidecar.tools.bench.workload import Workload
from sidecar.tools.testing.process_stats import cpu_seconds

ATTACKS: Final = {
    "frames and connections": (
        "large_first_frame",
        "half_messages",
        "never_attach",
        "long_messages",
        "hellos",
        "deep_and_wide",
    ),
    "floods and nonsense": (
        "topic_flood",
        "topic_flood",
        "absurd_values",
        "absurd_values",
        "pings_unread",
        "random_frames",
    ),
}
"""Kinds of sidecar.tools.testing.hostile_client, one process each."""
PROBE_RECORDS_PER_S: Final = 200.0
SECONDS: Final = 8.0
KEY_BYTES: Final = 16
SETTINGS: Final = {"daemon.shutdown_timeout_s": 1}
SHARE_MIN: Final = 0.001


@dataclass(frozen=True)
class Beside:
    latencies_us: list[float]
    shares: list[float]
    """The share of one core taken by each neighbour."""
    daemon_share: float


def measure_hostile(bed: Bed, results: Results) -> None:
    """Measure each attack with its own daemons and default settings. Not on a foreign cluster, where floods may create
    topics.
    """
    for attack, kinds in ATTACKS.items():
        section = f"a quiet client beside six hostile processes: {attack}"
        with bed.steps.step(f"A quiet client beside six hostile processes ({attack}), {bed.rounds} rounds"):
            with daemon_before(bed.site.bootstrap_servers, SETTINGS) as site:
                _beside(site, bed.topic, _attackers(site, kinds, bed.rounds))
            for number in range(bed.rounds):
                _round(bed, results, section, kinds, number)
        for beside, at_most in (("alone", 2.0), ("control", 1.2)):
            results.compare(
                f"p99 of a quiet client beside six hostile processes ({attack}), against {beside}",
                (section, "p99", "hostile"),
                (section, "p99", beside),
                at_most=at_most,
            )


def _round(bed: Bed, results: Results, section: str, kinds: Sequence[str], number: int) -> None:
    """Measure alone and beside the attack, then on a fresh daemon beside the control."""
    with daemon_before(bed.site.bootstrap_servers, SETTINGS) as site:
        alone = _beside(site, bed.topic, [])
        hostile = _beside(site, bed.topic, _attackers(site, kinds, number))
    with daemon_before(bed.site.bootstrap_servers, SETTINGS) as site:
        _beside(site, bed.topic, [])  # warm, as the other one was
        burners = [("sidecar.tools.bench.burner", str(max(SHARE_MIN, share))) for share in hostile.shares]
        control = _beside(site, bed.topic, burners)
    for side, found in (("alone", alone), ("control", control), ("hostile", hostile)):
        shown = add_percentiles(results, section, side, found.latencies_us)
        results.add(section, "slowest record", side, "ms", [max(found.latencies_us) / 1000])
        results.add(section, "CPU of the neighbours", side, "cores", [sum(found.shares)])
        results.add(section, "CPU of the daemon", side, "cores", [found.daemon_share])
        bed.steps.say(
            f"{side}: {shown}, slowest {max(found.latencies_us) / 1000:.1f} ms; "
            f"cores: neighbours {sum(found.shares):.2f}, daemon {found.daemon_share:.2f}"
        )


def _attackers(site: Site, kinds: Sequence[str], number: int) -> list[tuple[str, ...]]:
    run_dir = str(site.daemon.run_dir)
    return [
        ("sidecar.tools.testing.hostile_client", kind, run_dir, str(len(kinds) * number + place))
        for place, kind in enumerate(kinds)
    ]


def _beside(site: Site, topic: str, neighbours: Sequence[tuple[str, ...]]) -> Beside:
    workload = Workload(topic, 10_000, KEY_BYTES, 100)
    words = site.timed_words(
        "open_loop", "sidecar", workload, records_per_s=PROBE_RECORDS_PER_S, seconds=SECONDS
    )
    with _running(neighbours) as pids, started(words) as probes:
        daemon = site.pids
        began_s, daemon_s = time.monotonic(), cpu_seconds(daemon)
        before_s = [cpu_seconds([pid]) for pid in pids]
        latencies_us: list[float] = go(probes)[0]["latencies_us"]
        took_s = time.monotonic() - began_s
        shares = [(cpu_seconds([pid]) - cpu_s) / took_s for pid, cpu_s in zip(pids, before_s, strict=True)]
        return Beside(latencies_us, shares, (cpu_seconds(daemon) - daemon_s) / took_s)


@contextlib.contextmanager
def _running(neighbours: Sequence[tuple[str, ...]]) -> Iterator[list[int]]:
    """Processes that print a line when they are working, and work until they are killed."""
    with contextlib.ExitStack() as stack:
        processes = []
        for module, *words in neighbours:
            process = stack.enter_context(
                subprocess.Popen(python_command(module, *words), stdout=subprocess.PIPE)
            )
            stack.callback(process.kill)
            processes.append(process)
        for process in processes:
            assert process.stdout is not None
            if not process.stdout.readline():
                raise RuntimeError("a neighbour of the quiet client did not start")
        yield [process.pid for process in processes]
