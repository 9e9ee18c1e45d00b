"""Metrics of the daemon's state: samples from the controller's ``status()``.

The collector calls it at each scrape, on the controller's loop.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final, NamedTuple

from sidecar.shm.counters import Kind

Status = dict[str, Any]
Samples = Sequence[tuple[tuple[str, ...], float]]


class StateRow(NamedTuple):
    """A metric that is read from ``status()``. The other fields are those of CounterRow."""

    name: str
    kind: Kind
    unit: str
    help: str
    labels: tuple[str, ...]
    samples: Callable[[Status], Samples]
    worry: str = ""


def _by_broker(status: Status, value: Callable[[dict[str, Any]], float]) -> Samples:
    return [((str(each["id"]),), float(value(each))) for each in status["brokers"]]


def _brokers_up(status: Status) -> Samples:
    """Whether each broker is up; without a sample for brokers that are only known or connecting."""
    known = {"up": 1.0, "down": 0.0, "silent": 0.0}
    return [
        ((str(each["id"]),), known[each["state"]]) for each in status["brokers"] if each["state"] in known
    ]


def _pool_bytes(status: Status, of: str, key: str) -> Samples:
    held: dict[str, int] = {}  # names that cannot be printed may look the same
    for each in status["pool"][of]:
        held[each[key]] = held.get(each[key], 0) + each["pages"]
    return [((name,), float(pages * status["pool"]["page_bytes"])) for name, pages in held.items()]


def _streams_held(status: Status) -> Samples:
    held: dict[str, int] = {}
    for each in status["holds"]:
        held[each["reason"]] = held.get(each["reason"], 0) + each["streams"]
    return [((reason,), float(count)) for reason, count in sorted(held.items())]


STATE_ROWS: Final = (
    StateRow(
        "up",
        "gauge",
        "0 or 1",
        "1 while the daemon accepts records, also while Kafka is away.",
        (),
        lambda status: [((), float(status["accepts_records"]))],
        "0: `kafka-sidecar status` and `/readyz` say why.",
    ),
    StateRow(
        "kafka_reachable",
        "gauge",
        "0 or 1",
        "1 while Kafka answers the daemon.",
        (),
        lambda status: [((), float(status["kafka_reachable"]))],
        "0: records are accepted and wait; `kafka-sidecar status` says why.",
    ),
    StateRow(
        "degraded",
        "gauge",
        "0 or 1",
        "1 while a worker is down, or records have waited for 5 s for a broker that is down, silent or refuses them, "
        "for a leader, or for metadata.",
        (),
        lambda status: [((), float(status["state"] == "degraded"))],
        "1: `kafka-sidecar status` has the sentence and what to do.",
    ),
    StateRow(
        "broker_up",
        "gauge",
        "0 or 1",
        "1 while the broker is connected and answers; 0 while it is down or silent (requests without an answer for 5 "
        "s). No sample while no connection to it exists or is needed, and during the first attempt.",
        ("broker",),
        _brokers_up,
        "0: the log and `kafka-sidecar status` have its last error.",
    ),
    StateRow(
        "broker_in_flight_requests",
        "gauge",
        "requests",
        "Requests at the broker without an answer.",
        ("broker",),
        lambda status: _by_broker(status, lambda each: each["in_flight"]),
    ),
    StateRow(
        "broker_held_records",
        "gauge",
        "records",
        "Records that wait for the broker.",
        ("broker",),
        lambda status: _by_broker(status, lambda each: each["held_records"]),
        "It grows while the broker is up: the broker is slow, or throttles.",
    ),
    StateRow(
        "broker_throttle_seconds",
        "gauge",
        "seconds",
        "The last throttle time that the broker asked for because of a quota, in the last 30 s.",
        ("broker",),
        lambda status: _by_broker(status, lambda each: each["throttle_ms"] / 1000.0),
        "Above 0 for long: send less, or raise the quota of the daemon's user or client.id.",
    ),
    StateRow(
        "oldest_held_record_seconds",
        "gauge",
        "seconds",
        "Age of the oldest held record, with the cause; no sample while all records are sent at once.",
        ("cause",),
        lambda status: (
            [((status["oldest_held"]["cause"],), status["oldest_held"]["seconds"])]
            if status["oldest_held"]
            else []
        ),
        "Above 5 s: `kafka-sidecar status` names topic, broker and reason.",
    ),
    StateRow(
        "buffer_pages",
        "gauge",
        "pages",
        "Pages of the buffer pool; `buffer_pages_taken` are in use.",
        (),
        lambda status: [((), float(status["pool"]["pages"]))],
    ),
    StateRow(
        "pool_bytes",
        "gauge",
        "bytes",
        "Size of the buffer pool.",
        (),
        lambda status: [((), float(status["pool"]["pages"] * status["pool"]["page_bytes"]))],
    ),
    StateRow(
        "pool_used_bytes",
        "gauge",
        "bytes",
        "Pages of the buffer pool in use, by all workers.",
        (),
        lambda status: [((), float(status["pool"]["pages_used"] * status["pool"]["page_bytes"]))],
        "Near `pool_bytes`: clients wait; `pool_topic_bytes` and `pool_client_bytes` show who holds it.",
    ),
    StateRow(
        "pool_topic_bytes",
        "gauge",
        "bytes",
        "Pages of the buffer pool that a topic holds; the 20 that hold most.",
        ("topic",),
        lambda status: _pool_bytes(status, "by_topic", "topic"),
        "One topic near its share (half of the pool): its clients wait, others do not.",
    ),
    StateRow(
        "pool_client_bytes",
        "gauge",
        "bytes",
        "Pages of the buffer pool that a client holds, by client name; the 20 that hold most.",
        ("client",),
        lambda status: _pool_bytes(status, "by_client", "client"),
    ),
    StateRow(
        "batch_size_limit_bytes",
        "gauge",
        "bytes",
        "`batch.size` for topics without their own setting. A full batch that has to wait grows beyond it.",
        (),
        lambda status: [((), float(status["batch_size"]))],
    ),
    StateRow(
        "streams_held",
        "gauge",
        "streams",
        "Streams whose stub waits, by reason: pool, share, ring, unknown_topic, rate, express, paused, disk, error.",
        ("reason",),
        _streams_held,
        "Above 0 for long: `kafka-sidecar status` names client, topic and reason.",
    ),
    StateRow(
        "certificate_ends_timestamp_seconds",
        "gauge",
        "seconds",
        "Expiry of a certificate of the connections to Kafka, Unix time: ours, the CA's, and those of brokers.",
        ("certificate",),
        lambda status: [((each["certificate"],), each["ends_seconds"]) for each in status["certificates"]],
        "Less than 14 days ahead: renew it; the log names it once a day.",
    ),
    StateRow(
        "clock_steps_total",
        "counter",
        "steps",
        "Steps of the wall clock by 2 s or more.",
        (),
        lambda status: [((), float(status["clock_steps"]))],
        "Any growth: records without their own timestamp got the wrong one; look at the host's time service.",
    ),
    StateRow(
        "controller_stalled_seconds_total",
        "counter",
        "seconds",
        "Time in which the controller did not run, in pieces of 5 s or more: it was stopped, or the machine was.",
        (),
        lambda status: [((), status["stalled_seconds"])],
        "Any growth: the process was stopped, or the host has far too little CPU.",
    ),
    StateRow(
        "worker_ready",
        "gauge",
        "0 or 1",
        "1 while the worker takes clients.",
        ("worker",),
        lambda status: [
            ((str(worker["index"]),), float(worker["state"] == "ready")) for worker in status["workers"]
        ],
        "0 for longer than a start takes: the worker's log says why.",
    ),
    StateRow(
        "worker_clients",
        "gauge",
        "clients",
        "Clients assigned to the worker.",
        ("worker",),
        lambda status: [((str(worker["index"]),), float(worker["clients"])) for worker in status["workers"]],
    ),
    StateRow(
        "worker_info",
        "gauge",
        "1",
        "Constant 1; says which slot the worker has now.",
        ("worker", "slot"),
        lambda status: [((str(worker["index"]), str(worker["slot"])), 1.0) for worker in status["workers"]],
    ),
    StateRow(
        "worker_restarts_total",
        "counter",
        "restarts",
        "Workers replaced after a death; `cause`: killed, silent, channel, exited or not_started.",
        ("worker", "cause"),
        lambda status: [
            ((str(worker["index"]), cause), float(count))
            for worker in status["workers"]
            for cause, count in worker["restarts_by_cause"].items()
        ],
        "Any growth: `kafka-sidecar status` and the log say how each ended.",
    ),
    StateRow(
        "control_refused_total",
        "counter",
        "messages",
        "Refusals at the control socket (HELLO and TOPICS), by code.",
        ("code",),
        lambda status: [((code,), float(count)) for code, count in sorted(status["refused"].items())],
        "NOT_ADMITTED or MALFORMED_FRAME: a client with a wrong token, or a foreign program; the log names its "
        "process.",
    ),
    StateRow(
        "slots_held",
        "gauge",
        "slots",
        "Slots that hold records of a dead worker.",
        (),
        lambda status: [((), float(len(status["held_slots"])))],
        "Above 0 for minutes: a worker cannot adopt them, or a killed one cannot end (state D).",
    ),
    StateRow(
        "info",
        "gauge",
        "1",
        "Constant 1; the labels name the version and this run of the daemon.",
        ("version", "run_id"),
        lambda status: [((status["version"], status["instance"]), 1.0)],
    ),
    StateRow(
        "start_time_seconds",
        "gauge",
        "seconds",
        "Start of the daemon, Unix time.",
        (),
        lambda status: [((), status["started_ms"] / 1000.0)],
        "It changes without a planned restart.",
    ),
)
