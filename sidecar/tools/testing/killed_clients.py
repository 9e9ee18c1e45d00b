"""Clients that are killed one after another.

``python -m sidecar.tools.testing.killed_clients RUN_DIR TOPIC COUNT AT_ONCE``

It is a separate program, since it forks. Each child opens a producer, waits until its first record is delivered,
reports that through a pipe, and goes on sending until its parent kills it. The result is one line of JSON: how many
children reported, and how many ended earlier, which is an error.
"""

from __future__ import annotations

import itertools
import json
import os
import signal
import subprocess
import sys
import time
import traceback
from pathlib import Path
from typing import NamedTuple

from sidecar.common.python_child import python_command
from sidecar.tools.testing.ledger import RecordId

FIRST_S = 120.0
CONNECT_MS = 30_000
DELIVERED, FAILED = b"+", b"-"
BURST, PAUSE_S = 10, 0.01
"""Pause after each burst, so that clients do not flood the topic while they wait to be killed."""


class KilledClients(NamedTuple):
    killed: int
    failed: int


def run_killed_clients(
    run_dir: Path, topic: str, count: int, *, at_once: int = 4, timeout_s: float = 600.0
) -> KilledClients:
    """Run the program. Raises RuntimeError with its output when it failed, or when a client was not ended by
    the kill.
    """
    done = subprocess.run(
        python_command("sidecar.tools.testing.killed_clients", str(run_dir), topic, str(count), str(at_once)),
        capture_output=True,
        text=True,
        check=False,
        timeout=timeout_s,
    )
    if done.returncode != 0:
        raise RuntimeError(f"the killed clients failed: {done.stderr.strip()[-3000:]}")
    found = KilledClients(**json.loads(done.stdout))
    if found.failed:
        raise RuntimeError(
            f"{found.failed} of {count} clients ended by themselves: {done.stderr.strip()[-3000:]}"
        )
    return found


def client_name(number: int) -> str:
    return f"killed-{number}"


def live(run_dir: str, topic: str, number: int, pipe: int) -> None:
    """Send records until the process is killed."""
    from client_stub import Producer

    name = client_name(number)
    # On a busy machine a client may wait for a slot; only a longer wait means that the table is full.
    producer = Producer(run_dir=run_dir, client_name=name, connect_timeout_ms=CONNECT_MS)
    for record in itertools.count():
        delivery = producer.send(topic, RecordId(name, record).encode())
        if record == 0:
            delivery.result(timeout=FIRST_S)
            os.write(pipe, DELIVERED)
        elif record % BURST == 0:
            time.sleep(PAUSE_S)


def start(run_dir: str, topic: str, number: int) -> tuple[int, int]:
    """Fork a client; returns its pid and pipe."""
    reader, writer = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            os.close(reader)
            live(run_dir, topic, number, writer)
        except BaseException:
            traceback.print_exc()
            sys.stderr.flush()
        finally:
            os.write(writer, FAILED)
            os._exit(1)
    os.close(writer)
    return pid, reader


def main() -> int:
    run_dir, topic, count, at_once = sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
    # Imported before the fork, as a pre-forking server does.
    import client_stub.io.io_thread  # noqa: F401
    import client_stub.io.transport  # noqa: F401

    living: list[tuple[int, int]] = []
    killed = failed = 0
    for number in range(count + at_once):
        if number >= at_once:
            pid, reader = living.pop(0)
            is_delivered = os.read(reader, 1) == DELIVERED
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
            os.close(reader)
            killed += is_delivered
            failed += not is_delivered
        if number < count:
            living.append(start(run_dir, topic, number))
    print(json.dumps(KilledClients(killed, failed)._asdict()))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
