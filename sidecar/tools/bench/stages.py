"""Stages: one transaction that several processes fill, against the same without any, and what its parts cost."""

from __future__ import annotations

import time
import uuid
from typing import Any, Final

from client_stub import Producer
from sidecar.tools.bench.bed import Bed
from sidecar.tools.bench.latency import add_percentiles
from sidecar.tools.bench.measurement import Results
from sidecar.tools.bench.peers.peer import WARM_S
from sidecar.tools.bench.runner import begin, go, run_throughput, started
from sidecar.tools.bench.workload import Workload
from sidecar.tools.testing.kafka_topics import create_topics

SECTION: Final = "stages"
RECORDS: Final = 1_000_000
PROCESSES: Final = 4
VALUE_BYTES: Final = 32
"""So small that all records fit into the stages' share of the pool."""
TOKENS: Final = 200
TOKEN_ROWS: Final = 500
WIDE_PARTITIONS: Final = 100
LOAD_MB_PER_S: Final = 100.0
PROBE_PER_S: Final = 500.0
PROBE_SECONDS: Final = 6.0
WHOLE: Final = f"seconds for {RECORDS:,} records of {PROCESSES} processes"
ROWS: Final = TOKENS * TOKEN_ROWS
INCLUDE: Final = f"seconds to include and commit {TOKENS} tokens, {ROWS:,} rows, {WIDE_PARTITIONS} partitions"
BESIDE: Final = f"a plain client beside processes that stage {LOAD_MB_PER_S:g} MB/s"
ALONE: Final = "the same client alone"


def measure_stages(bed: Bed, results: Results) -> None:
    with bed.steps.step(
        f"{RECORDS:,} records of {PROCESSES} processes in a transaction, {bed.rounds} rounds"
    ):
        for _ in range(bed.rounds):
            for side, seconds in (("stages", _staged_s(bed)), ("plain", _plain_s(bed))):
                results.add(SECTION, WHOLE, side, "s", [seconds])
                bed.steps.say(f"{side}: {seconds:.2f} s")
    with bed.steps.step(f"Include of {TOKENS} tokens, {bed.rounds} rounds"):
        topic = f"{bed.topic}-wide"
        create_topics(bed.site.bootstrap_servers, {topic: WIDE_PARTITIONS})
        for _ in range(bed.rounds):
            seconds = _include_s(bed, topic)
            results.add(SECTION, INCLUDE, "sidecar", "s", [seconds])
            bed.steps.say(f"{seconds:.3f} s")
    with bed.steps.step(f"A plain client beside stages, {bed.rounds} alternating rounds"):
        for _ in range(bed.rounds):
            bed.steps.say(f"alone: {_probe(bed, results, ALONE)}")
            words = _words(bed, "staging", mb_per_s=LOAD_MB_PER_S / 2)
            with started(words, 2) as processes:
                begin(processes)
                bed.steps.say(f"beside: {_probe(bed, results, BESIDE)}")
    results.compare(
        f"{WHOLE}, against send_arrow", (SECTION, WHOLE, "stages"), (SECTION, WHOLE, "plain"), at_most=1.2
    )
    results.compare(f"{BESIDE}, p99", (BESIDE, "p99", "sidecar"), (ALONE, "p99", "sidecar"), at_most=2.0)


def _words(bed: Bed, mode: str, **more: Any) -> dict[str, Any]:
    workload = Workload(bed.topic, RECORDS // PROCESSES, value_bytes=VALUE_BYTES).to_dict()
    return {"mode": mode, "target": bed.site.target("sidecar"), "workload": workload, **more}


def _staged_s(bed: Bed) -> float:
    """From the first record of the first process until the transaction is committed."""
    transactional_id = f"bench-{uuid.uuid4()}"
    with Producer(bed.site.target("sidecar"), transactional_id=transactional_id) as producer:
        producer.init_transactions(WARM_S)
        with started(_words(bed, "stage", transactional_id=transactional_id), PROCESSES) as processes:
            bed.before_run(RECORDS * (16 + VALUE_BYTES))
            found = go(processes)
            producer.begin_transaction()
            inclusion = producer.include([bytes.fromhex(each["token"]) for each in found], WARM_S)
            producer.commit_transaction(WARM_S)
            ended_s = time.monotonic()
    if inclusion.rows != RECORDS:
        raise RuntimeError(f"only {inclusion.rows:,} of {RECORDS:,} records were included")
    return ended_s - min(float(each["started_s"]) for each in found)


def _plain_s(bed: Bed) -> float:
    workload = Workload(bed.topic, RECORDS // PROCESSES, value_bytes=VALUE_BYTES)
    kind = "sidecar-send-arrow"
    done = run_throughput(kind, bed.site.target(kind), workload, callers=PROCESSES, before_go=bed.before_run)
    return RECORDS / done.records_per_s


def _include_s(bed: Bed, topic: str) -> float:
    transactional_id = f"bench-{uuid.uuid4()}"
    rows = [(b"%d" % row, b"x" * VALUE_BYTES) for row in range(TOKEN_ROWS)]
    run_dir = bed.site.target("sidecar")
    with Producer(run_dir) as stager, Producer(run_dir, transactional_id=transactional_id) as producer:
        tokens = []
        for number in range(TOKENS):
            with stager.stage(transactional_id, number) as stage:
                stage.send_many(topic, rows)
                tokens.append(stage.seal(WARM_S))
        producer.init_transactions(WARM_S)
        producer.begin_transaction()
        started_s = time.monotonic()
        producer.include(tokens, WARM_S)
        producer.commit_transaction(WARM_S)
        return time.monotonic() - started_s


def _probe(bed: Bed, results: Results, section: str) -> str:
    words = bed.site.timed_words(
        "open_loop",
        "sidecar",
        Workload(bed.topic, 1),
        records_per_s=PROBE_PER_S,
        seconds=PROBE_SECONDS,
    )
    with started(words) as processes:
        (found,) = go(processes)
    return add_percentiles(results, section, "sidecar", found["latencies_us"])
