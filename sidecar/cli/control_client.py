"""Sends one question to the daemon's control endpoint and returns its answer."""

from __future__ import annotations

from typing import Any

import msgpack
import zmq

from client_stub.contract.wire import Kind
from sidecar.cli.common import daemon_info, fail
from sidecar.common.model import ExitStatus
from sidecar.controller.rundir.run_dir import RunDir


def ask(run_dir: RunDir, message: list[Any], timeout_s: float) -> list[Any]:
    """Send ``message`` and return the answer's fields after its kind.

    Ends the command with 69 when no daemon runs, 75 when it is stopped or does not answer in time, 1 when it refuses.
    """
    info = daemon_info(run_dir)
    if info["state"] == "stopped":
        fail(info["sentence"], ExitStatus.TIMED_OUT)
    try:
        answer = _exchange(run_dir, message, timeout_s)
    except UnicodeEncodeError as error:  # an argument whose bytes are not UTF-8
        fail(f"The name {ascii(error.object)[:80]} is not UTF-8, as all names are here.", ExitStatus.USAGE)
    if answer is None:
        fail(
            f"The daemon on run dir {run_dir.path} did not answer within {timeout_s:g} s: "
            "look at its log and at `kafka-sidecar status`.",
            ExitStatus.TIMED_OUT,
        )
    if answer[0] == Kind.REFUSED:
        fail(str(answer[2]))
    fields: list[Any] = answer[1:]
    return fields


def is_answering(run_dir: RunDir, timeout_s: float) -> bool:
    """Whether the controller's loop answers."""
    return _exchange(run_dir, [Kind.PING], timeout_s) is not None


def _exchange(run_dir: RunDir, message: list[Any], timeout_s: float) -> list[Any] | None:
    """The whole answer; None without one in time. Raises UnicodeEncodeError."""
    question = msgpack.packb(message)
    context = zmq.Context(io_threads=1)
    asking: zmq.Socket[bytes] = context.socket(zmq.DEALER)
    try:
        asking.setsockopt(zmq.LINGER, 0)
        asking.setsockopt(zmq.RCVTIMEO, int(timeout_s * 1000))
        asking.setsockopt(zmq.SNDTIMEO, int(timeout_s * 1000))
        asking.connect(f"ipc://{run_dir.control_socket}")
        asking.send(question)
        answer: list[Any] = msgpack.unpackb(asking.recv(), strict_map_key=False)
    except zmq.Again:
        return None
    finally:
        asking.close()
        context.term()
    return answer
