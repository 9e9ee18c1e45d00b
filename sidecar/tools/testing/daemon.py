"""A real daemon (``kafka-sidecar run``) in its own process, on a run dir with a short path."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import IO, Any

from sidecar.common.model import ExitStatus
from sidecar.common.python_child import python_command
from sidecar.tools.testing.child_processes import dying_with_parent
from sidecar.tools.testing.waiting import ConditionTimeout, wait_until

START_TIMEOUT_S = 30.0
STOP_TIMEOUT_S = 30.0

StartDaemon = Callable[..., "SidecarDaemon"]
"""The fixture ``start_daemon``: arguments of SidecarDaemon, and ``wait=False`` to not wait for it."""


class DaemonFailed(RuntimeError):
    """The daemon ended or did not become ready. The message has the end of its log."""


class SidecarDaemon:
    """Start, watch and stop one daemon. Use it as a context manager from one thread.

    ``settings`` are those of ``-X``: Kafka's names as they are, other tables with dots. ``prefix`` are words before
    the command, of a program that ends by executing it (``prlimit``, ``unshare``, ``sh -c 'exec "$@"'``). ``config``
    is the file of ``-c``, which may then name the brokers (``bootstrap_servers`` None).
    """

    def __init__(
        self,
        bootstrap_servers: str | None,
        *,
        settings: Mapping[str, object] | None = None,
        run_dir: Path | None = None,
        environment: Mapping[str, str] | None = None,
        prefix: Sequence[str] = (),
        config: Path | None = None,
    ) -> None:
        self._settings: dict[str, object] = {
            **({"bootstrap.servers": bootstrap_servers} if bootstrap_servers else {}),
            "http.listen": "127.0.0.1:0",
            "buffer.memory": 64 << 20,
            "daemon.workers": 2,
            **(settings or {}),
        }
        # AF_UNIX paths end at 107 bytes, and pytest's own temporary folders come close.
        self._own_run_dir = run_dir is None
        self.run_dir = run_dir or Path(tempfile.mkdtemp(prefix="ks-", dir="/tmp"))
        self.log_path = Path(f"{self.run_dir}.log")
        self._environment = dict(environment or {})
        self._prefix = list(prefix)
        self._config = config
        self._log: IO[bytes] | None = None
        self.process: subprocess.Popen[bytes] | None = None
        self._segment: Path | None = None

    def use(self, **settings: object) -> None:
        """Settings for the next start, over the earlier ones."""
        self._settings |= settings

    def use_environment(self, **variables: str) -> None:
        """Variables for the next start, over the earlier ones."""
        self._environment |= variables

    def spawn(self, *words: str) -> subprocess.Popen[bytes]:
        """Start the process and return at once. ``words``: further arguments, such as ``--takeover``."""
        arguments = [f"{name}={value}" for name, value in self._settings.items()]
        if self._log is not None:
            self._log.close()  # of the earlier process
        self._log = self.log_path.open("ab")
        self.process = subprocess.Popen(
            dying_with_parent(
                [
                    *self._prefix,
                    *cli("run"),
                    "--run-dir",
                    str(self.run_dir),
                    *words,
                    *(("-c", str(self._config)) if self._config else ()),
                    *(word for pair in arguments for word in ("-X", pair)),
                ]
            ),
            stdin=subprocess.DEVNULL,
            stdout=self._log,
            stderr=subprocess.STDOUT,
            env={**os.environ, **self._environment},
            start_new_session=True,  # this process handles Ctrl-C, in its own order
        )
        return self.process

    def start(self) -> None:
        """Start it and wait until ``status`` says that it takes records."""
        self.spawn()
        self.wait_ready()

    def take_over(self) -> subprocess.Popen[bytes]:
        """Start the next daemon in the place of the one that runs. Returns that one once it has ended."""
        old = self.process
        assert old is not None
        self.spawn("--takeover")
        self.wait_ready()
        old.wait(STOP_TIMEOUT_S)
        return old

    def wait_ready(self, timeout_s: float = START_TIMEOUT_S) -> None:
        """Wait until daemon.json says what ``status`` exits 0 for, and each worker is ready. Raises DaemonFailed when
        the daemon ends first.
        """

        # Read here and not by the command: a Python start for each question would slow down the start it waits for.
        def ready() -> bool:
            info = self._own_info()
            return bool(info.get("takes_records")) and len(self.ready_pids()) == len(info["workers"])

        try:
            wait_until(ready, "the daemon to take records", timeout_s=timeout_s, interval_s=0.02)
        except ConditionTimeout as error:
            raise DaemonFailed(f"{error}\n{self.command('status').stderr}{self.log_tail()}") from None
        self._segment = Path(self.info()["segment"])

    def wait_published(self) -> None:
        """Wait until it has written its own daemon.json: clients reach it, with or without Kafka. Raises DaemonFailed
        when the daemon ends first.
        """
        wait_until(lambda: bool(self._own_info()), "the daemon's own daemon.json", describe=self.log_tail)

    def _own_info(self) -> dict[str, Any]:
        """daemon.json of the process that was spawned last, not that of a killed one; empty before it is written."""
        assert self.process is not None
        if self.process.poll() is not None:
            raise DaemonFailed(f"the daemon ended with {self.process.returncode}:\n{self.log_tail()}")
        with contextlib.suppress(OSError, ValueError):
            info = self.info()
            if info["pid"] == self.process.pid:
                return info
        return {}

    def command(
        self, *words: str, timeout_s: float = 60.0, stdin: bytes = b""
    ) -> subprocess.CompletedProcess[str]:
        """Run another command of the CLI against this daemon."""
        return subprocess.run(
            [*cli(words[0]), "--run-dir", str(self.run_dir), *words[1:]],
            input=stdin.decode(),
            capture_output=True,
            text=True,
            timeout=timeout_s,
            check=False,
        )

    def info(self) -> dict[str, Any]:
        """The contents of daemon.json: pid, segment path, http address, workers."""
        found: dict[str, Any] = json.loads((self.run_dir / "daemon.json").read_text())
        return found

    def status(self) -> dict[str, Any]:
        """``status --json``; raises DaemonFailed when the daemon is not reachable."""
        shown = self.command("status", "--json")
        if shown.returncode not in {ExitStatus.OK, ExitStatus.FAILED}:
            raise DaemonFailed(shown.stderr)
        found: dict[str, Any] = json.loads(shown.stdout)
        return found

    def worker_pids(self) -> list[int]:
        return [int(worker["pid"]) for worker in self.info()["workers"]]

    def ready_pids(self) -> list[int]:
        """The pids of the workers that take clients: a daemon is ready when one of them is."""
        return [int(worker["pid"]) for worker in self.info()["workers"] if worker["state"] == "ready"]

    def log_lines(self) -> Iterator[str]:
        """The lines of all its processes so far, oldest first."""
        with self.log_path.open(errors="replace") as log:
            yield from log

    def log_tail(self, lines: int = 30) -> str:
        if not self.log_path.exists():
            return "(no log)"
        return "\n".join(self.log_path.read_text(errors="replace").splitlines()[-lines:])

    def stop(self, timeout_s: float = STOP_TIMEOUT_S) -> int:
        """SIGTERM, wait, and return the exit status; raises DaemonFailed when it does not end in time."""
        assert self.process is not None
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        try:
            return self.process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            tail = self.log_tail()
            self.kill()
            raise DaemonFailed(f"the daemon did not end within {timeout_s:g} s of SIGTERM:\n{tail}") from None

    def force(self) -> None:
        """Send SIGTERM during its drain until one counts as a second stop, which fails the remaining records."""
        process = self.process
        assert process is not None

        def counted() -> bool:
            process.send_signal(signal.SIGTERM)
            return process.poll() is not None or "not delivered yet fail to their senders" in self.log_tail()

        wait_until(counted, "a SIGTERM that counts as the second stop", timeout_s=10, interval_s=0.2)

    def kill(self) -> None:
        """SIGKILL the controller; its workers notice that and end."""
        if self.process is not None and self.process.poll() is None:
            self.process.kill()
            self.process.wait()

    def kill_all(self) -> None:
        """SIGKILL the controller and its workers, and wait until all their locks are released."""
        workers = set(self.worker_pids())
        if self.process is not None and self.process.poll() is None:
            self.process.send_signal(signal.SIGSTOP)  # so that it starts no worker now
            workers |= _children_of(self.process.pid)
        self.kill()
        for pid in workers:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        # A zombie has no /proc/PID/exe.
        wait_until(lambda: not any(Path(f"/proc/{pid}/exe").exists() for pid in workers), "the workers' end")

    def remove(self) -> None:
        """Kill the remaining processes, and remove run dir, log and segment."""
        workers: Sequence[int] = ()
        with contextlib.suppress(OSError, ValueError, KeyError):
            workers = self.worker_pids()
        self.kill()
        for pid in workers:
            with contextlib.suppress(OSError):
                if b"sidecar" in Path(f"/proc/{pid}/cmdline").read_bytes():
                    os.kill(pid, signal.SIGKILL)
        if self._log is not None:
            self._log.close()
        # Even if it never became ready: its worker may have accepted records, which keep the file.
        with contextlib.suppress(OSError, ValueError, KeyError):
            Path(json.loads((self.run_dir / "segment.json").read_text())["path"]).unlink(missing_ok=True)
        if self._segment is not None:
            self._segment.unlink(missing_ok=True)
        if self._own_run_dir:
            shutil.rmtree(self.run_dir, ignore_errors=True)
        self.log_path.unlink(missing_ok=True)

    def __enter__(self) -> SidecarDaemon:
        try:
            self.start()
        except BaseException:
            self.remove()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            if error is None and self.process is not None and self.process.poll() is None:
                self.stop()
        finally:
            self.remove()


def cli(command: str) -> list[str]:
    """The command line that starts a CLI command in this environment, whatever PATH says."""
    return python_command("sidecar", command)


def _children_of(parent: int) -> set[int]:
    """The children of ``parent``, including workers that are not ready yet and so in no list."""
    found = set()
    for path in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            if int(path.read_text().rpartition(")")[2].split()[1]) == parent:
                found.add(int(path.parent.name))
    return found
