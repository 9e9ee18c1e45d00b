"""One question to the daemon's control endpoint and its answer."""

from __future__ import annotations

from typing import Any

import msgpack
import zmq

from client_stub.wire import Kind
from sidecar.cli.common import daemon_info, fail
from sidecar.common.model import ExitStatus
from sidecar.controller.run_dir import RunDir


def ask(run_dir: RunDir, message: list[Any], timeout_s: float) -> list[Any]:
    """Send ``message`` and return the answer's fields after its kind.

    Ends the command with 69 when no daemon runs, 75 when it does not answer in time, 1 when it refuses.
    """
    daemon_info(run_dir)
    context = zmq.Context(io_threads=1)
    asking: zmq.Socket[bytes] = context.socket(zmq.DEALER)
    try:
        asking.setsockopt(zmq.LINGER, 0)
        asking.setsockopt(zmq.RCVTIMEO, int(timeout_s * 1000))
        asking.setsockopt(zmq.SNDTIMEO, int(timeout_s * 1000))
        asking.connect(f"ipc://{run_dir.control_socket}")
        try:
            asking.send(msgpack.packb(message))
            answer = msgpack.unpackb(asking.recv(), strict_map_key=False)
        except zmq.Again:
            fail(
                f"The daemon on run dir {run_dir.path} did not answer within {timeout_s:g} s: "
                "look at its log and at `kafka-sidecar status`.",
                ExitStatus.TIMED_OUT,
            )
    finally:
        asking.close()
        context.term()
    if answer[0] == Kind.REFUSED:
        fail(str(answer[2]))
    fields: list[Any] = answer[1:]
    return fields
