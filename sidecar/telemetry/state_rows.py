"""Metrics of the daemon's state: what ``status()`` of the controller says, as samples."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final, NamedTuple

from sidecar.shm.counters import Kind

Status = dict[str, Any]
Samples = Sequence[tuple[tuple[str, ...], float]]


class StateRow(NamedTuple):
    """A metric that is read from ``status()``. The other fields are as in CounterRow."""

    name: str
    kind: Kind
    unit: str
    help: str
    labels: tuple[str, ...]
    samples: Callable[[Status], Samples]
    worry: str = ""


STATE_ROWS: Final = (
    StateRow(
        "up",
        "gauge",
        "0 or 1",
        "1 while the daemon takes records.",
        (),
        lambda status: [((), float(status["takes_records"]))],
        "0: `kafka-sidecar status` and `/healthz` say why.",
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
        "Workers replaced after a death.",
        (),
        lambda status: [((), float(status["restarts"]))],
        "Any growth: the log has the exit status of each.",
    ),
    StateRow(
        "control_refused_total",
        "counter",
        "messages",
        "Refusals at the control socket (HELLO and TOPICS), by code.",
        ("code",),
        lambda status: [((code,), float(count)) for code, count in sorted(status["refused"].items())],
        "NOT_ADMITTED or MALFORMED_FRAME: a client with a wrong token, or none of ours; the log names its process.",
    ),
    StateRow(
        "slots_held",
        "gauge",
        "slots",
        "Slots that hold records of a dead worker.",
        (),
        lambda status: [((), float(len(status["held_slots"])))],
        "Above 0 for minutes: a worker cannot adopt them, or a dead one does not go (state D).",
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
        "It changes without a restart of yours.",
    ),
)
