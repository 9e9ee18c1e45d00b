"""Transactions: how long one takes, how many records go through them, and how many connections their ids cost."""

from __future__ import annotations

import contextlib
import time
from pathlib import Path
from typing import Any, Final

from sidecar.tools.bench.bed import Bed
from sidecar.tools.bench.latency import add_percentiles
from sidecar.tools.bench.measurement import Results
from sidecar.tools.bench.runner import begin, go, outcome, started
from sidecar.tools.bench.stages import measure_stages
from sidecar.tools.bench.workload import Workload

SECTION: Final = "transactions"
SIDES: Final = ("sidecar", "confluent")
RECORDS_EACH: Final = 100
COUNT: Final = 200
BULK_RECORDS: Final = 4_000_000
"""Of the client beside the transactions: more than it sends while they run."""
FLEET: Final = 50
FLEET_SECONDS: Final = 5.0
FLEET_PER_S: Final = 20.0
"""Transactions a second of the whole fleet."""
RATE_SECONDS: Final = 6.0


def measure_transactions(bed: Bed, results: Results) -> None:
    with bed.steps.step(f"Transactions of {RECORDS_EACH} records, {bed.rounds} alternating rounds"):
        for _ in range(bed.rounds):
            for side in SIDES:
                bed.steps.say(f"{side}: {_latency(bed, side, results, SECTION)}")
            with _beside_bulk(bed):
                bed.steps.say(f"sidecar beside a bulk client: {_latency(bed, 'sidecar', results, BESIDE)}")
    with bed.steps.step(f"Records in transactions of 1 s, {bed.rounds} alternating rounds"):
        for _ in range(bed.rounds):
            for side in (*SIDES, "sidecar-plain"):
                rate = _rate(bed, side)
                results.add(SECTION, RATE, side, "1/s", [rate])
                bed.steps.say(f"{side}: {rate:,.0f} records/s")
    with bed.steps.step(f"{FLEET} processes with a transactional id each"):
        for side in SIDES:
            count = _connections(bed, side)
            results.add(SECTION, CONNECTIONS, side, "", [count])
            bed.steps.say(f"{side}: {count} connections at the broker")
    measure_stages(bed, results)
    _compare(results)


BESIDE: Final = "transactions beside a bulk client of the same daemon"
RATE: Final = "records/s in transactions of 1 s"
CONNECTIONS: Final = f"connections at the broker of {FLEET} processes"


def _words(bed: Bed, mode: str, side: str, **more: Any) -> dict[str, Any]:
    workload = Workload(bed.topic, RECORDS_EACH).to_dict()
    return {"mode": mode, "kind": side, "target": bed.site.target(side), "workload": workload, **more}


def _latency(bed: Bed, side: str, results: Results, section: str) -> str:
    with started(_words(bed, "transactions", side, count=COUNT)) as processes:
        (found,) = go(processes)
    return add_percentiles(results, section, side, found["latencies_us"])


@contextlib.contextmanager
def _beside_bulk(bed: Bed) -> Any:
    """A client of the same daemon that sends all the time, and is ended with the block."""
    words = {
        "mode": "throughput",
        "kind": "sidecar-send-many",
        "target": bed.site.target("sidecar"),
        "workload": Workload(bed.topic, BULK_RECORDS).to_dict(),
        "producers": 1,
    }
    with started(words) as processes:
        begin(processes)
        yield


def _rate(bed: Bed, side: str) -> float:
    with started(_words(bed, "transactional_rate", side, seconds=RATE_SECONDS)) as processes:
        (found,) = go(processes)
    return float(found["records_per_s"])


def _connections(bed: Bed, side: str) -> int:
    """The connections at the broker while the fleet sends; those of the daemon count for our side only."""
    port = int(bed.site.bootstrap_servers.rpartition(":")[2])
    before = _established(port)
    pause_s = FLEET / FLEET_PER_S
    with started(
        _words(bed, "transactions", side, count=round(FLEET_SECONDS / pause_s), pause_s=pause_s), FLEET
    ) as processes:
        begin(processes)
        time.sleep(FLEET_SECONDS / 2)  # a measurement in the middle of its time
        count = _established(port)
        for process in processes:
            outcome(process)
    return count if side == "sidecar" else count - before


def _established(port: int) -> int:
    """Connections of this host whose far end is ``port``."""
    count = 0
    for path in ("/proc/net/tcp", "/proc/net/tcp6"):
        for line in Path(path).read_text().splitlines():
            fields = line.split()
            if len(fields) > 3 and fields[3] == "01" and fields[2].endswith(f":{port:04X}"):
                count += 1
    return count


def _compare(results: Results) -> None:
    def compare(what: str, ours: tuple[str, str, str], theirs: tuple[str, str, str], **bound: float) -> None:
        results.compare(what, ours, theirs, **bound)

    mine = (SECTION, "p50", "sidecar")
    compare(
        f"a transaction of {RECORDS_EACH} records, p50, against confluent's",
        mine,
        (SECTION, "p50", "confluent"),
        at_most=1.2,
    )
    compare("the same beside a bulk client, against alone", (BESIDE, "p50", "sidecar"), mine, at_most=2.0)
    rate = (SECTION, RATE, "sidecar")
    compare(
        "records/s in transactions, against without", rate, (SECTION, RATE, "sidecar-plain"), at_least=0.9
    )
    compare(
        "records/s in transactions, against confluent's", rate, (SECTION, RATE, "confluent"), at_least=2.5
    )
    compare(
        "connections at the broker, against confluent's",
        (SECTION, CONNECTIONS, "sidecar"),
        (SECTION, CONNECTIONS, "confluent"),
        at_most=0.1,
    )
