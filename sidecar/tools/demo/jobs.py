"""Ways to get the flights into the topic: the pipeline in Spark, or send_many() from forked processes."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import IO

from sidecar.common.python_child import python_command, safe_environment
from sidecar.tools.demo import flights
from sidecar.tools.demo.judge import TASK_SHIFT
from sidecar.tools.testing.child_processes import dying_with_parent

SEND_MANY_ROWS = 2_000
POLL_S = 0.2
OUTPUT_LINES = 25
SPARK_SETTINGS = (
    "spark.ui.enabled=false",
    "spark.driver.bindAddress=127.0.0.1",
    "spark.driver.host=127.0.0.1",
    "spark.driver.memory=1g",
    "spark.sql.session.timeZone=UTC",
)
"""Of a session on this machine alone, whatever its host name resolves to."""


class JobFailed(RuntimeError):
    """The job ended with an error. The message has the end of its output."""


class Job:
    """A program in its own session, which is watched and killed as a whole."""

    def __init__(self, words: list[str], environment: Mapping[str, str] | None = None) -> None:
        self._output: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115
        self._process = subprocess.Popen(
            dying_with_parent(python_command(*words)),
            env={**safe_environment(), **(environment or {})},
            stdin=subprocess.DEVNULL,
            stdout=self._output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        self._start = time.monotonic()

    def watch(self, while_running: Callable[[], object]) -> float:
        """Call ``while_running`` until the program ends. Returns its duration in seconds. Raises JobFailed."""
        while True:
            try:
                status = self._process.wait(POLL_S)
            except subprocess.TimeoutExpired:
                while_running()
                continue
            seconds = time.monotonic() - self._start
            if status != 0:
                raise JobFailed(f"the job ended with {status}:\n{self._tail()}")
            return seconds

    def _text(self) -> str:
        # pread, as the program writes through the same file offset, which must not be moved here.
        number = self._output.fileno()
        return os.pread(number, os.fstat(number).st_size, 0).decode(errors="replace")

    def _tail(self) -> str:
        return "\n".join(self._text().splitlines()[-OUTPUT_LINES:])

    def stop(self) -> None:
        """Kill the program and all its processes (Spark's JVM, its Python workers). May be called again."""
        if self._process.poll() is None:
            os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()
        self._output.close()

    def __enter__(self) -> Job:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()


def pipeline_job(csv: Path, run_dir: Path, topic: str) -> Job:
    """The main use as a user would write it: the pipeline of flights.toml, which is the first of the examples."""
    settings = [word for each in SPARK_SETTINGS for word in ("--conf", each)]
    return Job(
        [
            "client_stub.pipeline",
            "run",
            str(Path(__file__).with_name("flights.toml")),
            *("--run-dir", str(run_dir), "--master", "local[2]", "--quiet"),
            *settings,
        ],
        {"FLIGHTS_CSV": str(csv), "FLIGHTS_TOPIC": topic},
    )


def forked_job(csv: Path, run_dir: Path, topic: str, processes: int = 2) -> Job:
    return Job(["sidecar.tools.demo.jobs", str(csv), str(run_dir), topic, str(processes)])


def send_share(csv: Path, run_dir: str, topic: str, index: int, processes: int) -> int:
    """Send every row whose turn is ``index`` of ``processes`` by send_many(); returns how many.

    Raises the error of the first record that failed.
    """
    from client_stub import Producer

    sent = 0
    batch: list[tuple[bytes, bytes]] = []
    with Producer(run_dir=run_dir, client_name=f"demo-{index}") as producer:
        for number, row in enumerate(flights.rows(csv)):
            if number % processes != index:
                continue
            value = {
                **row,
                "distance": int(row["distance"]),
                "flight": int(row["flight"]),
                "row": index << TASK_SHIFT | number,
            }
            batch.append((row[flights.KEY_COLUMN].encode(), json.dumps(value).encode()))
            if len(batch) == SEND_MANY_ROWS:
                producer.send_many(topic, batch)
                sent += len(batch)
                batch = []
        if batch:
            producer.send_many(topic, batch)
            sent += len(batch)
        producer.flush(timeout=120)
    return sent


def main() -> int:
    """Fork the senders before any socket exists, as a pre-forking server does."""
    csv, run_dir, topic, processes = sys.argv[1:]
    children = []
    for index in range(int(processes)):
        pid = os.fork()
        if pid == 0:
            status = 1
            try:
                print(f"sent {send_share(Path(csv), run_dir, topic, index, int(processes))}", flush=True)
                status = 0
            except Exception as error:
                print(f"{type(error).__name__}: {error}", file=sys.stderr, flush=True)
            finally:
                os._exit(status)
        children.append(pid)
    return max(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in children)


if __name__ == "__main__":
    raise SystemExit(main())
