"""How many steps one record takes: Python calls, functions and files, in the stub's process and in the worker.

These are counts and no times, so a busy machine does not change them. The rule of counting:

- Steady state: warm-up records are not counted. A count is the mean over many records (or submissions).
- The null broker, one worker, no standby, ``linger.ms`` 0; one caller that waits for each outcome before the next.
- A call of a Python function of the product counts, in any thread; properties, constructors, generators' resumptions
  and comprehensions too. A function of Cython or of a library counts as none.
- Functions called less than 0.5 times a record are left out: heartbeats, metrics, housekeeping.
- Functions with work of their own are counted once more, alone: ``own_work.py`` has their rule.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final, Protocol

from client_stub import Producer
from sidecar.bench import call_hook
from sidecar.bench.bed import TOPIC, daemon_before, null_broker
from sidecar.bench.call_counter import Calls, RemoteCounter, counted_here
from sidecar.bench.measurement import Results
from sidecar.bench.own_work import has_own_work
from sidecar.bench.workload import BATCH_RECORDS, Workload
from sidecar.demo.steps import Steps
from sidecar.testing.waiting import wait_until

SECTION: Final = "steps"
PARTITIONS: Final = 6
WAITED_FOR: Final = "one record that is waited for"
BULK: Final = f"one bulk submission of {BATCH_RECORDS:,} records to one partition, by key"
SPREAD: Final = f"the same to {PARTITIONS} partitions, by key"
WARM_UP: Final = 50
REPEATS: Final = {WAITED_FOR: 300, BULK: 100, SPREAD: 100}
SELDOM: Final = 0.5
SETTINGS: Final[dict[str, object]] = {"daemon.workers": 1, "daemon.standby": False, "linger.ms": 0}
TIMEOUT_S: Final = 60.0


class Counter(Protocol):
    def clear(self) -> None: ...

    def count(self) -> int: ...

    def read(self) -> Calls: ...


@dataclass(frozen=True)
class Step:
    """One function, ``path:line qualified.name``, and the mean number of its calls per record."""

    function: str
    calls: float


@dataclass(frozen=True)
class Walk:
    """The way of one record, or of one submission, through one process; ``steps`` are in the order of first calls."""

    what: str
    side: str
    steps: tuple[Step, ...]

    @property
    def calls(self) -> float:
        return sum(each.calls for each in self.steps)

    @property
    def files(self) -> int:
        return len({each.function.partition(":")[0] for each in self.steps})

    @property
    def working(self) -> tuple[Step, ...]:
        """The functions with more than a delegation."""
        return tuple(each for each in self.steps if has_own_work(each.function))

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


def measure_steps(steps: Steps, results: Results) -> None:
    """Add a row for each walk's calls, functions and files; the functions themselves are only in the JSON."""
    with steps.step("Calls, functions and files that one record passes"):
        walks = count_walks()
    for walk in walks:
        results.add(SECTION, f"{walk.what}: calls", walk.side, "", [round(walk.calls, 1)])
        results.add(SECTION, f"{walk.what}: functions", walk.side, "", [len(walk.steps)])
        results.add(SECTION, f"{walk.what}: functions with own work", walk.side, "", [len(walk.working)])
        results.add(SECTION, f"{walk.what}: files", walk.side, "", [walk.files])
        results.walks.append(walk.to_dict())
    for room, (functions, files) in by_room(walks).items():
        results.add(SECTION, f"{WAITED_FOR}: functions with own work", room, "", [functions])
        results.add(SECTION, f"{WAITED_FOR}: files", room, "", [files])


def by_room(walks: Sequence[Walk]) -> dict[str, tuple[int, int]]:
    """Folder → (functions with own work, their files) of one record, in stub and worker; most functions first."""
    working: dict[str, set[str]] = {}
    for walk in walks:
        if walk.what == WAITED_FOR:
            for step in walk.working:
                working.setdefault(step.function.rpartition(":")[0].rpartition("/")[0], set()).add(
                    step.function
                )
    found = {
        room: (len(functions), len({each.partition(":")[0] for each in functions}))
        for room, functions in working.items()
    }
    return dict(sorted(found.items(), key=lambda item: (-item[1][0], item[0])))


def count_walks() -> list[Walk]:
    """The walks of both kinds, in stub and worker. Starts a broker and a daemon, and takes about five seconds."""
    with (
        tempfile.TemporaryDirectory(prefix="ks-", dir="/tmp") as folder,
        null_broker({TOPIC: PARTITIONS}) as address,
    ):
        socket = str(Path(folder) / "calls")
        inherited = os.environ.get("PYTHONPATH")
        environment = {
            "PYTHONPATH": os.pathsep.join(
                [str(Path(call_hook.__file__).parent), *([inherited] if inherited else [])]
            ),
            "SIDECAR_BENCH_CALLS": socket,
        }
        with (
            daemon_before(address, SETTINGS, environment) as site,
            closing(RemoteCounter(socket)) as worker,
            counted_here() as stub,
            Producer(run_dir=str(site.daemon.run_dir), client_name="steps") as producer,
        ):
            spread = Workload(TOPIC, BATCH_RECORDS).batches()[0]
            to_one = [(spread[0][0], value) for _, value in spread]
            ways: dict[str, Callable[[], object]] = {
                WAITED_FOR: lambda: producer.send(TOPIC, b"value", partition=0).result(TIMEOUT_S),
                BULK: lambda: producer.send_many(TOPIC, to_one).result(TIMEOUT_S),
                SPREAD: lambda: producer.send_many(TOPIC, spread).result(TIMEOUT_S),
            }
            counters: dict[str, Counter] = {"stub": stub, "worker": worker}
            return [walk for what, once in ways.items() for walk in _walks(what, once, counters)]


def _walks(what: str, once: Callable[[], object], counters: dict[str, Counter]) -> list[Walk]:
    repeats = REPEATS[what]
    for _ in range(WARM_UP):
        once()
    for counter in counters.values():
        _wait_until_idle(counter)
        counter.clear()
    for _ in range(repeats):
        once()
    found = []
    for side, counter in counters.items():
        _wait_until_idle(counter)
        steps = (Step(function, calls / repeats) for function, calls in counter.read().items())
        found.append(Walk(what, side, tuple(step for step in steps if step.calls >= SELDOM)))
    return found


def _wait_until_idle(counter: Counter) -> None:
    """Wait until no calls are made: calls after an outcome still belong to its record."""
    last: list[int] = []

    def is_idle() -> bool:
        last.append(counter.count())
        return len(last) > 1 and last[-1] == last[-2]

    wait_until(is_idle, "the last record's work to end")
