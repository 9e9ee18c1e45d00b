"""One calling process of the bench: ``python -m sidecar.tools.bench.caller '{"mode": …}'``.

It connects, delivers one record, prints ``ready`` and waits for a line on its stdin, so that several callers start at
once. Then it runs and prints one line of JSON. CPU time is that of the whole process, so it includes a library's own
threads.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, replace
from typing import Any

from sidecar.tools.bench.open_loop import Rhythm, run_one_by_one, run_open_loop
from sidecar.tools.bench.peers import Peer, make_peer, make_timed_peer
from sidecar.tools.bench.peers.peer import WARM_S
from sidecar.tools.bench.peers.sidecar_peers import arrow_table
from sidecar.tools.bench.peers.transactional_peers import TRANSACTIONAL
from sidecar.tools.bench.workload import BATCH_RECORDS, Workload
from sidecar.tools.testing.process_stats import own_rss_mb

FLOOD_VALUE_BYTES = 1_000
FLOOD_CALL_RECORDS = 500
FLOOD_BLOCK_MS = 100
"""How long a call waits before it continues with the next topic."""


@dataclass(frozen=True)
class CallerResult:
    """Times are seconds of the monotonic clock, which all processes of a host share."""

    records: int
    acked: int
    started_s: float
    ended_s: float
    cpu_s: float
    rss_mb: float


def main() -> int:
    words: dict[str, Any] = json.loads(sys.argv[1])
    modes: dict[str, Callable[[dict[str, Any]], Any]] = {
        "throughput": _throughput,
        "open_loop": _open_loop,
        "one_by_one": _one_by_one,
        "flood": _flood,
        "transactions": _transactions,
        "transactional_rate": _transactional_rate,
        "stage": _stage,
        "staging": _staging,
    }
    print(json.dumps(modes[words["mode"]](words)), flush=True)
    return 0


def _await_go() -> None:
    print("ready", flush=True)
    if not sys.stdin.readline():
        raise SystemExit("the bench is gone")


def _throughput(words: dict[str, Any]) -> dict[str, Any]:
    workload = Workload(**words["workload"])
    peers = [make_peer(words["kind"], words["target"]) for _ in range(words["producers"])]
    for peer in peers:
        peer.warm(workload.topic)
        peer.prepare(workload)
    _await_go()
    started_s, cpu_s = time.monotonic(), time.process_time()
    acked = send_by_all(peers, workload)
    ended_s = time.monotonic()
    result = CallerResult(acked[0], acked[1], started_s, ended_s, time.process_time() - cpu_s, own_rss_mb())
    for peer in peers:
        peer.close()
    return asdict(result)


def send_by_all(peers: Sequence[Peer], workload: Workload) -> tuple[int, int]:
    """(records sent, records acknowledged) by all peers together, a thread each if there are several."""
    if len(peers) == 1:
        return workload.records, peers[0].send_all(workload)
    share = replace(workload, records=max(1, workload.records // len(peers)))
    with ThreadPoolExecutor(len(peers)) as threads:
        acked = sum(threads.map(lambda peer: peer.send_all(share), peers))
    return share.records * len(peers), acked


def _open_loop(words: dict[str, Any]) -> dict[str, Any]:
    workload = Workload(**words["workload"])
    peer = make_timed_peer(words["kind"], words["target"], words["linger_ms"])
    peer.warm(workload.topic)
    _await_go()
    latencies_us, sent_per_s = run_open_loop(peer, workload, Rhythm(words["records_per_s"], words["seconds"]))
    peer.close()
    return {"latencies_us": latencies_us, "sent_per_s": sent_per_s, "rss_mb": own_rss_mb()}


def _one_by_one(words: dict[str, Any]) -> dict[str, Any]:
    workload = Workload(**words["workload"])
    peer = make_timed_peer(words["kind"], words["target"], words["linger_ms"])
    peer.warm(workload.topic)
    _await_go()
    found = run_one_by_one(peer, workload)
    peer.close()
    return {"latencies_us": found, "rss_mb": own_rss_mb()}


def _transactions(words: dict[str, Any]) -> dict[str, Any]:
    """``count`` transactions of the workload's records each, with ``pause_s`` between them if given."""
    workload = Workload(**words["workload"])
    records = workload.make()
    peer = TRANSACTIONAL[words["kind"]](words["target"])
    latencies_us: list[float] = []
    is_first = True
    while len(latencies_us) < words["count"]:
        started_s = time.monotonic()
        peer.begin()
        peer.send(workload.topic, records)
        peer.commit()
        if is_first:  # its sockets and metadata are there from here on
            is_first = False
            _await_go()
            continue
        latencies_us.append((time.monotonic() - started_s) * 1e6)
        time.sleep(words.get("pause_s", 0.0))
    peer.close()
    return {"latencies_us": latencies_us}


def _transactional_rate(words: dict[str, Any]) -> dict[str, Any]:
    """Send for ``seconds``, and commit once a second."""
    workload = replace(Workload(**words["workload"]), records=BATCH_RECORDS)
    records = workload.make()
    peer = TRANSACTIONAL[words["kind"]](words["target"])
    peer.begin()
    peer.send(workload.topic, records)
    peer.commit()
    _await_go()
    sent, started_s = 0, time.monotonic()
    while (now_s := time.monotonic()) < started_s + words["seconds"]:
        peer.begin()
        while time.monotonic() < now_s + 1.0:
            peer.send(workload.topic, records)
            sent += len(records)
        peer.commit()
    rate = sent / (time.monotonic() - started_s)
    peer.close()
    return {"records_per_s": rate}


def _stage(words: dict[str, Any]) -> dict[str, Any]:
    """Fill one stage with the workload's records, in tables of 10,000 rows, and seal it."""
    from client_stub import Producer

    workload = Workload(**words["workload"])
    table = arrow_table(workload)
    with Producer(run_dir=words["target"], client_name="bench") as producer:
        producer.stage(words["transactional_id"], 0).seal(WARM_S)  # connects
        _await_go()
        started_s, sent = time.monotonic(), 0
        with producer.stage(words["transactional_id"], 1) as stage:
            while sent < workload.records:
                sent += stage.send_arrow(workload.topic, table.slice(0, workload.records - sent))
            token = stage.seal(WARM_S)
    return {"started_s": started_s, "token": token.hex()}


def _staging(words: dict[str, Any]) -> dict[str, Any]:
    """Fill stages of some 5 MB at ``mb_per_s`` and drop them, until the process is killed."""
    from client_stub import Producer

    workload = Workload(**words["workload"])
    rows = [(key, value * 30) for key, value in workload.make()[:1_000]]
    call_mb = sum(len(key) + len(value) for key, value in rows) / 1e6
    producer = Producer(run_dir=words["target"], client_name="bench-staging")
    producer.stage("bench-staging", 0).seal(WARM_S)
    _await_go()
    due_s = time.monotonic()
    while True:
        stage = producer.stage("bench-staging", 1)
        for _ in range(5):
            stage.send_many(workload.topic, rows)
            due_s += call_mb / words["mb_per_s"]
            time.sleep(max(0.0, due_s - time.monotonic()))
        stage.seal(WARM_S)
        stage.drop(WARM_S)


def _flood(words: dict[str, Any]) -> dict[str, Any]:
    """Send records to topics that do not exist, as many as the daemon takes, until the time is over."""
    from client_stub import Producer, errors

    records = [(None, b"x" * FLOOD_VALUE_BYTES)] * FLOOD_CALL_RECORDS
    sent = 0
    with Producer(run_dir=words["target"], max_block_ms=FLOOD_BLOCK_MS) as producer:
        _await_go()
        until_s = time.monotonic() + words["seconds"]
        while time.monotonic() < until_s:
            for topic in words["topics"]:
                try:
                    producer.send_many(topic, records)
                    sent += len(records)
                except errors.BufferExhausted:
                    continue
        producer.close(timeout=0)
    return {"sent": sent}


if __name__ == "__main__":
    raise SystemExit(main())
