"""One calling process of the bench: ``python -m sidecar.bench.caller KIND TARGET TOPIC RECORDS``.

Prints one line of JSON. Each kind sends the same records: 100-byte values, 16-byte keys. The clock starts
after one record was acked (sockets and metadata are warm) and stops when every record has been acked; CPU is
that of this whole process, threads included, so what a library does in its own threads counts too.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from typing import Any, NamedTuple

VALUE_BYTES = 100
KEY_BYTES = 16
DISTINCT = 10_000
SEND_MANY_RECORDS = 1_000
POLL_EVERY = 1_000
FLUSH_S = 300

Record = tuple[bytes, bytes]


class CallerResult(NamedTuple):
    records: int
    acked: int
    seconds: float
    cpu_s: float

    @property
    def records_per_s(self) -> float:
        return self.acked / self.seconds

    @property
    def cpu_us_per_record(self) -> float:
        return self.cpu_s * 1e6 / self.records


def make_records() -> list[Record]:
    """Distinct keys and values, made before the clock starts."""
    return [
        (b"key-%012d" % number, (b"value-%06d-" % number).ljust(VALUE_BYTES, b"x"))
        for number in range(DISTINCT)
    ]


def _measure(records: int, send_all: Callable[[], int]) -> CallerResult:
    start, cpu = time.monotonic(), time.process_time()
    acked = send_all()
    return CallerResult(records, acked, time.monotonic() - start, time.process_time() - cpu)


def sidecar_callbacks(run_dir: str, topic: str, records: int) -> CallerResult:
    """send() with a callback for each record: like for like with confluent's produce()."""
    from client_stub import Producer

    pairs = make_records()
    acked = 0

    def told(error: object, _metadata: object) -> None:
        nonlocal acked
        if error is not None:
            raise RuntimeError(str(error))
        acked += 1

    with Producer(run_dir=run_dir, client_name="bench") as producer:
        producer.send(topic, value=b"warm").result(timeout=60)

        def send_all() -> int:
            send = producer.send
            for number in range(records):
                key, value = pairs[number % DISTINCT]
                send(topic, value=value, key=key, on_delivery=told)
            producer.flush(timeout=FLUSH_S)
            return acked

        return _measure(records, send_all)


def sidecar_send(run_dir: str, topic: str, records: int) -> CallerResult:
    """send() whose future nobody keeps, then flush(), which returns when all have an outcome."""
    from client_stub import Producer

    pairs = make_records()
    with Producer(run_dir=run_dir, client_name="bench") as producer:
        producer.send(topic, value=b"warm").result(timeout=60)

        def send_all() -> int:
            send = producer.send
            for number in range(records):
                key, value = pairs[number % DISTINCT]
                send(topic, value=value, key=key)
            producer.flush(timeout=FLUSH_S)
            return records

        return _measure(records, send_all)


def sidecar_send_many(run_dir: str, topic: str, records: int) -> CallerResult:
    """send_many() of 1,000 records a call, then flush()."""
    from client_stub import Producer

    pairs = make_records()
    calls = [pairs[start : start + SEND_MANY_RECORDS] for start in range(0, DISTINCT, SEND_MANY_RECORDS)]
    with Producer(run_dir=run_dir, client_name="bench") as producer:
        producer.send(topic, value=b"warm").result(timeout=60)

        def send_all() -> int:
            for number in range(records // SEND_MANY_RECORDS):
                producer.send_many(topic, calls[number % len(calls)])
            producer.flush(timeout=FLUSH_S)
            return records // SEND_MANY_RECORDS * SEND_MANY_RECORDS

        return _measure(records, send_all)


def confluent_callbacks(bootstrap_servers: str, topic: str, records: int) -> CallerResult:
    """confluent-kafka's produce(), idempotent, with a callback for each record."""
    from confluent_kafka import Producer

    from sidecar.testing.kafka_topics import quiet_config

    pairs = make_records()
    acked = 0

    def told(error: object, _message: object) -> None:
        nonlocal acked
        if error is not None:
            raise RuntimeError(str(error))
        acked += 1

    producer: Any = Producer(
        quiet_config(
            bootstrap_servers,
            {"enable.idempotence": "true", "linger.ms": 5, "queue.buffering.max.messages": 1_000_000},
        )
    )
    producer.produce(topic, value=b"warm", on_delivery=told)
    producer.flush(60)
    acked = 0

    def send_all() -> int:
        produce, poll = producer.produce, producer.poll
        for number in range(records):
            key, value = pairs[number % DISTINCT]
            while True:
                try:
                    produce(topic, value=value, key=key, on_delivery=told)
                    break
                except BufferError:
                    poll(0.05)
            if number % POLL_EVERY == 0:
                poll(0)
        producer.flush(FLUSH_S)
        return acked

    return _measure(records, send_all)


def sidecar_latency(run_dir: str, topic: str, records: int) -> list[float]:
    """Seconds from send() to its outcome, one record at a time."""
    from client_stub import Producer

    found = []
    with Producer(run_dir=run_dir, client_name="bench") as producer:
        producer.send(topic, value=b"warm").result(timeout=60)
        for _ in range(records):
            start = time.monotonic()
            delivery = producer.send(topic, value=b"v" * VALUE_BYTES)
            producer.flush(timeout=60)
            delivery.result(timeout=60)
            found.append(time.monotonic() - start)
    return found


def confluent_latency(bootstrap_servers: str, topic: str, records: int) -> list[float]:
    """The same by confluent-kafka; flush() ends linger in both."""
    from confluent_kafka import Producer

    from sidecar.testing.kafka_topics import quiet_config

    acked = 0

    def told(error: object, _message: object) -> None:
        nonlocal acked
        if error is not None:
            raise RuntimeError(str(error))
        acked += 1

    producer = Producer(quiet_config(bootstrap_servers, {"enable.idempotence": "true", "linger.ms": 5}))
    producer.produce(topic, value=b"warm", on_delivery=told)
    producer.flush(60)
    found = []
    for _ in range(records):
        start = time.monotonic()
        producer.produce(topic, value=b"v" * VALUE_BYTES, on_delivery=told)
        producer.flush(60)
        found.append(time.monotonic() - start)
    if acked != records + 1:
        raise RuntimeError(f"only {acked - 1} of {records} records were acked")
    return found


KINDS: dict[str, Callable[[str, str, int], Any]] = {
    "sidecar-callbacks": sidecar_callbacks,
    "sidecar-send": sidecar_send,
    "sidecar-send-many": sidecar_send_many,
    "sidecar-latency": sidecar_latency,
    "confluent-callbacks": confluent_callbacks,
    "confluent-latency": confluent_latency,
}


def main() -> int:
    kind, target, topic, records = sys.argv[1:]
    print(json.dumps(KINDS[kind](target, topic, int(records))))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
