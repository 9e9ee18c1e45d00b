"""A standalone cluster of Spark on this machine: a master, and workers on loopback addresses of their own as hosts.

Each host has its own folders and its own environment, by which its tasks find its own daemon. A job is a driver in a
process of its own: only one session of Spark fits into a process.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Final

import psutil
import pyspark

from client_stub.contract.run_dir import RUN_DIR_VARIABLE
from sidecar.common.python_child import python_command, safe_environment
from sidecar.tools.testing.child_processes import dying_with_parent
from sidecar.tools.testing.kafka_cluster import free_ports
from sidecar.tools.testing.waiting import wait_until

ROOT: Final = Path(__file__).resolve().parents[2]
MASTER_ADDRESS: Final = "127.0.0.1"
ADDRESSES: Final = ("127.0.0.2", "127.0.0.3")
START_S: Final = 120.0
JOB_S: Final = 600.0
MEMORY: Final = "512m"
"""Of an executor: the least that Spark takes is 471 MB."""
QUICK_JVM: Final = "-XX:+UseSerialGC -XX:TieredStopAtLevel=1"
"""A JVM that lives for seconds does not earn back what its second compiler and its collector's threads take."""
CONF: Final = {
    "spark.ui.enabled": "false",
    "spark.driver.host": MASTER_ADDRESS,
    "spark.driver.bindAddress": MASTER_ADDRESS,
    "spark.driver.memory": MEMORY,
    "spark.executor.memory": MEMORY,
    "spark.executor.cores": "1",
    "spark.driver.defaultJavaOptions": QUICK_JVM,
    "spark.executor.defaultJavaOptions": QUICK_JVM,
    "spark.log.level": "ERROR",
    "spark.sql.shuffle.partitions": "2",
}


class SparkHost:
    """A worker with an address of its own, and the environment of all that runs there."""

    def __init__(self, address: str, folder: Path, environment: Mapping[str, str]) -> None:
        self.address = address
        self.folder = folder
        self._environment = environment
        self._process: subprocess.Popen[bytes] | None = None

    def start(self, master: str) -> None:
        self.folder.mkdir()
        words = ["--host", self.address, "--webui-port", "0", "--cores", "1", "--memory", MEMORY]
        words += ["--work-dir", str(self.folder / "work"), master]
        own = {"SPARK_LOCAL_IP": self.address, "SPARK_LOCAL_DIRS": str(self.folder / "local")}
        self._process = _start_class(
            "worker.Worker", words, self.folder / "worker.log", {**self._environment, **own}
        )

    @property
    def process(self) -> subprocess.Popen[bytes]:
        assert self._process is not None
        return self._process

    def executors(self) -> list[psutil.Process]:
        with contextlib.suppress(psutil.NoSuchProcess):
            return [
                each
                for each in psutil.Process(self.process.pid).children()
                if "CoarseGrainedExecutorBackend" in " ".join(each.cmdline())
            ]
        return []

    def log(self) -> str:
        """What its executors wrote, the tasks' Python included."""
        return "".join(each.read_text(errors="replace") for each in self.folder.glob("work/*/*/stderr"))


class SparkCluster:
    """Use it as a context manager from the main thread. ``environments``: of each host, over this process's own."""

    def __init__(self, environments: Sequence[Mapping[str, str]]) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="ks-spark-", dir="/tmp"))
        self.hosts = [
            SparkHost(address, self.folder / address, environment)
            for address, environment in zip(ADDRESSES, environments, strict=False)
        ]
        self.master = f"spark://{MASTER_ADDRESS}:{free_ports(1)[0]}"
        self._master_process: subprocess.Popen[bytes] | None = None

    @classmethod
    def with_run_dirs(cls, run_dirs: Sequence[Path]) -> SparkCluster:
        """A host for each of these run directories: its tasks write through the daemon there."""
        return cls([{RUN_DIR_VARIABLE: str(run_dir)} for run_dir in run_dirs])

    def __enter__(self) -> SparkCluster:
        try:
            self._start()
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def _start(self) -> None:
        log = self.folder / "master.log"
        port = self.master.rpartition(":")[2]
        words = ["--host", MASTER_ADDRESS, "--port", port, "--webui-port", "0"]
        self._master_process = _start_class("master.Master", words, log, {"SPARK_LOCAL_IP": MASTER_ADDRESS})
        for host in self.hosts:
            host.start(self.master)
        wait_until(
            lambda: log.exists() and log.read_text().count("Registering worker") >= len(self.hosts),
            "the workers of Spark to register",
            timeout_s=START_S,
            describe=lambda: "\n".join(each.read_text() for each in self.folder.glob("**/*.log")),
        )

    def stop(self) -> None:
        started = [host.process for host in self.hosts if host._process is not None]
        executors = [each for host in self.hosts if host._process is not None for each in host.executors()]
        for process in (*started, *([self._master_process] if self._master_process else ())):
            process.kill()
            process.wait()
        for executor in executors:
            with contextlib.suppress(psutil.NoSuchProcess):
                executor.kill()
        # Their Python workers see the end of the executor by their closed input.
        psutil.wait_procs(executors, timeout=30)
        shutil.rmtree(self.folder, ignore_errors=True)

    def start_job(self, job: str, *, conf: Mapping[str, str] | None = None, **arguments: object) -> SparkJob:
        """A driver that carries out ``job`` of ``tests.spark.cluster_jobs`` on this cluster."""
        return SparkJob(self.master, job, {**CONF, **(conf or {})}, arguments)

    def run_job(self, job: str, *, conf: Mapping[str, str] | None = None, **arguments: object) -> Any:
        """What the job returned. Raises JobFailed."""
        return self.start_job(job, conf=conf, **arguments).result()


class JobFailed(AssertionError):
    """The last line of the driver's error that is not of a stack; ``output`` has all."""

    def __init__(self, sentence: str, output: str) -> None:
        super().__init__(sentence)
        self.output = output


class SparkJob:
    """A driver in a process of its own."""

    def __init__(
        self,
        master: str,
        job: str,
        conf: Mapping[str, str],
        arguments: Mapping[str, object],
        environment: Mapping[str, str] | None = None,
        folder: Path = ROOT,
    ) -> None:
        """``environment`` is over this process's own, and ``folder`` the current one of the driver."""
        told = json.dumps({"master": master, "job": job, "conf": dict(conf), "arguments": dict(arguments)})
        self.process = subprocess.Popen(
            dying_with_parent(python_command("tests.spark.cluster_jobs", told)),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={**driver_environment(), **(environment or {})},
            cwd=folder,
        )

    def has_ended(self) -> bool:
        return self.process.poll() is not None

    def kill(self) -> None:
        """SIGKILL the program and its JVM, which is the driver; and wait for their end."""
        with contextlib.suppress(psutil.NoSuchProcess):
            mine = [
                psutil.Process(self.process.pid),
                *psutil.Process(self.process.pid).children(recursive=True),
            ]
            for each in mine:
                with contextlib.suppress(psutil.NoSuchProcess):
                    each.kill()
            psutil.wait_procs(mine, timeout=30)
        self.process.communicate()

    def result(self) -> Any:
        try:
            out, errors = self.process.communicate(timeout=JOB_S)
        except subprocess.TimeoutExpired as error:
            self.kill()
            raise JobFailed(f"the job had not ended after {JOB_S:g} s", str(error.stderr)) from None
        if self.process.returncode:
            *_, last = [
                "(no output)",
                *(line for line in errors.splitlines() if line.strip() and line[0] not in "\t "),
            ]
            raise JobFailed(last, errors)
        return json.loads(out.splitlines()[-1])


def driver_environment() -> dict[str, str]:
    """Workers find the packages also where they are not installed; what the caller's own daemon has set stays here."""
    kept = {
        name: value
        for name, value in safe_environment().items()
        if not name.startswith(("KAFKA_SIDECAR_", "SPARK_"))
    }
    path = os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
    return kept | {"PYSPARK_PYTHON": sys.executable, "PYTHONPATH": path}


def _start_class(
    name: str, words: Sequence[str], log: Path, environment: Mapping[str, str]
) -> subprocess.Popen[bytes]:
    home = Path(pyspark.__file__).parent
    own = {"SPARK_HOME": str(home), "SPARK_DAEMON_MEMORY": "256m", "SPARK_DAEMON_JAVA_OPTS": QUICK_JVM}
    own["SPARK_LAUNCHER_OPTS"] = QUICK_JVM
    with log.open("wb") as file:
        return subprocess.Popen(
            dying_with_parent([str(home / "bin" / "spark-class"), f"org.apache.spark.deploy.{name}", *words]),
            stdin=subprocess.DEVNULL,
            stdout=file,
            stderr=subprocess.STDOUT,
            env={**driver_environment(), **own, **environment},
        )
