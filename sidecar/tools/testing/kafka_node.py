"""One node of the embedded Kafka: a JVM that is broker and controller."""

from __future__ import annotations

import contextlib
import signal
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO

from sidecar.tools.testing.child_processes import dying_with_parent
from sidecar.tools.testing.kafka_jars import archive_of
from sidecar.tools.testing.kafka_listeners import Listener

# For clusters of several nodes on few CPUs: a JVM that starts sooner and has fewer threads.
_LIGHT_JVM = ("-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Xss512k")
_USUAL_JVM = ("-XX:+UseG1GC",)
_LOG_REQUESTS = "-Dorg.slf4j.simpleLogger.log.kafka.request.logger=debug"

# One node must host every internal topic alone, and tests must not wait for production timers.
_PROPERTIES = {
    "controller.listener.names": "CONTROLLER",
    "inter.broker.listener.name": "PLAINTEXT",
    "auto.create.topics.enable": "false",
    "num.partitions": "6",
    "offsets.topic.num.partitions": "1",
    "transaction.state.log.num.partitions": "1",
    "share.coordinator.state.topic.num.partitions": "1",
    "group.initial.rebalance.delay.ms": "0",
    "broker.session.timeout.ms": "5000",  # a killed broker cannot start again before this has passed
    "num.network.threads": "2",
    "num.io.threads": "4",
    "log.retention.check.interval.ms": "3600000",
    "log.cleaner.dedupe.buffer.size": "16777216",
    "controlled.shutdown.enable": "false",
}


class KafkaNode:
    """One JVM: its ports, folder, process. Not thread-safe; use it from one thread.

    ``roles`` as in Kafka's process.roles; a node without the role of a broker serves no clients. ``log_dirs``: number
    of log folders; with more than one, the metadata has a folder of its own, and the node survives the failure of any
    log folder. ``listeners``: further listeners beside PLAINTEXT, with their ports. ``advertised``: ports that clients
    are given instead, where a relay is in front.
    """

    def __init__(
        self,
        node_id: int,
        folder: Path,
        broker_port: int,
        controller_port: int,
        *,
        roles: str = "broker,controller",
        log_dirs: int = 1,
        listeners: Mapping[Listener, int] | None = None,
    ) -> None:
        self.roles = roles
        self.listeners = dict(listeners or {})
        self.advertised: dict[Listener, int] = {}
        self.log_dirs = (
            [folder / "data"] if log_dirs == 1 else [folder / f"data-{n}" for n in range(log_dirs)]
        )
        self.node_id = node_id
        self.folder = folder
        self.broker_port = broker_port
        self.controller_port = controller_port
        self.process: subprocess.Popen[bytes] | None = None
        self._log: IO[bytes] | None = None

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.broker_port}"

    @property
    def log_path(self) -> Path:
        return self.folder / "server.log"

    @property
    def config_path(self) -> Path:
        return self.folder / "server.properties"

    def write_config(self, voters: str, node_count: int, overrides: Mapping[str, str]) -> None:
        """Write server.properties; ``voters`` is the static controller quorum of all nodes."""
        replicas = str(min(3, node_count))
        properties = {
            **_PROPERTIES,
            "process.roles": self.roles,
            "node.id": str(self.node_id),
            "controller.quorum.voters": voters,
            "listener.security.protocol.map": ",".join(
                [
                    "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT",
                    *(f"{each.key}:{each.protocol}" for each in self.listeners),
                ]
            ),
            "listeners": ",".join(self._listeners()),
            "log.dirs": ",".join(map(str, self.log_dirs)),
            # The user of a client certificate is its common name.
            "ssl.principal.mapping.rules": "RULE:^CN=([^,]+).*$/$1/,DEFAULT",
            "ssl.allow.dn.changes": "true",
            "ssl.allow.san.changes": "true",
            "default.replication.factor": replicas,
            "offsets.topic.replication.factor": replicas,
            "transaction.state.log.replication.factor": replicas,
            "transaction.state.log.min.isr": "1",
            "share.coordinator.state.topic.replication.factor": replicas,
            "share.coordinator.state.topic.min.isr": "1",
            **overrides,
        }
        if len(self.log_dirs) > 1:
            properties["metadata.log.dir"] = str(self.folder / "metadata")
        if self.is_broker:
            properties["advertised.listeners"] = ",".join(
                [
                    f"PLAINTEXT://{self.address}",
                    *(f"{each.key}://{self.address_of(each)}" for each in self.listeners),
                ]
            )
        else:
            properties.pop("inter.broker.listener.name", None)
        self.folder.mkdir(parents=True, exist_ok=True)
        lines = [f"{name}={_escaped(value)}\n" for name, value in properties.items()]
        self.config_path.touch(mode=0o600)  # passwords of test users
        self.config_path.write_text("".join(lines))

    @property
    def is_broker(self) -> bool:
        return "broker" in self.roles

    def address_of(self, listener: Listener) -> str:
        """Return the address for clients of one of ``listeners``."""
        return f"{listener.host}:{self.advertised.get(listener, self.listeners[listener])}"

    def _listeners(self) -> list[str]:
        found = [f"PLAINTEXT://{self.address}"] if self.is_broker else []
        found += [f"{each.key}://127.0.0.1:{port}" for each, port in self.listeners.items()]
        if "controller" in self.roles:
            found.append(f"CONTROLLER://127.0.0.1:{self.controller_port}")
        return found

    def format(self, java: str, jars: Path, cluster_id: str, features: Mapping[str, int]) -> None:
        """Format the log folder as ``kafka-storage format`` does, which stores the feature levels."""
        done = subprocess.run(
            [
                java,
                "-Xmx128m",
                "-XX:TieredStopAtLevel=1",
                *_archived(jars),
                "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn",
                "-cp",
                f"{jars}/*",
                "kafka.tools.StorageTool",
                "format",
                "--cluster-id",
                cluster_id,
                "--config",
                str(self.config_path),
                *(word for name, level in features.items() for word in ("--feature", f"{name}={level}")),
            ],
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode != 0:
            raise RuntimeError(f"Kafka's storage format failed: {done.stdout}{done.stderr}")

    def spawn(
        self,
        java: str,
        jars: Path,
        heap_mb: int,
        *,
        light: bool = False,
        log_requests: bool = False,
        jvm_options: Sequence[str] = (),
    ) -> None:
        """Start the JVM. The kernel kills it when the calling thread ends (PR_SET_PDEATHSIG).

        ``light``: quick to start and small, but slower under load. ``log_requests``: every request is written to the
        log as JSON (:mod:`sidecar.tools.testing.kafka_request_log` reads it).
        """
        self._log = self.log_path.open("ab")
        self.process = subprocess.Popen(
            dying_with_parent(
                [
                    java,
                    f"-Xms{min(256, heap_mb)}m",
                    f"-Xmx{heap_mb}m",
                    *((*_LIGHT_JVM, *_archived(jars)) if light else _USUAL_JVM),
                    *([_LOG_REQUESTS] if log_requests else []),
                    *jvm_options,
                    "-Djava.awt.headless=true",
                    "-Dorg.slf4j.simpleLogger.showDateTime=true",
                    "-cp",
                    f"{jars}/*",
                    "kafka.Kafka",
                    str(self.config_path),
                ]
            ),
            stdin=subprocess.DEVNULL,
            stdout=self._log,
            stderr=subprocess.STDOUT,
            start_new_session=True,  # Ctrl-C at the terminal must not reach the JVM: we stop it
        )

    def is_started(self) -> bool:
        """Return whether the broker's log says that it has started. Raises RuntimeError when the JVM has ended."""
        assert self.process is not None
        if self.process.poll() is not None:
            raise RuntimeError(
                f"Kafka node {self.node_id} ended with {self.process.returncode}: "
                f"{self._log_errors() or self.log_tail()}"
            )
        return b"Kafka Server started" in self.log_path.read_bytes()

    def log_tail(self, lines: int = 15) -> str:
        if not self.log_path.is_file():
            return "(no log)"
        return "\n".join(self.log_path.read_text(errors="replace").splitlines()[-lines:])

    def _log_errors(self) -> str:
        """Return the first errors of the log: the reason of a failed start precedes the last lines."""
        lines = self.log_path.read_text(errors="replace").splitlines()
        found = [line for line in lines if " ERROR " in line or "Exception: " in line]
        return "\n".join(found[:10])

    def log_dir_of(self, topic: str, partition: int) -> Path:
        """Return the log folder that has the partition. Raises StopIteration when none has."""
        return next(each for each in self.log_dirs if (each / f"{topic}-{partition}").is_dir())

    def signal(self, number: int) -> None:
        """Send a signal to the JVM, for example SIGSTOP and SIGCONT for a broker that hangs and recovers."""
        if self.process is not None and self.process.poll() is None:
            self.process.send_signal(number)

    def end(self, *, clean: bool) -> None:
        """Stop (SIGTERM, then SIGKILL after 15 s) or kill the JVM and reap it. Its folder stays."""
        if self.process is None:
            return
        self.signal(signal.SIGCONT)
        if clean:
            self.signal(signal.SIGTERM)
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.process.wait(15)
        self.signal(signal.SIGKILL)
        self.process.wait()
        self.process = None
        if self._log is not None:
            self._log.close()
            self._log = None


def _archived(jars: Path) -> list[str]:
    """Options for a JVM that starts with the shared archive of these jars, where there is one."""
    archive = archive_of(jars)
    return [f"-XX:SharedArchiveFile={archive}"] if archive.exists() else []


def _escaped(value: str) -> str:
    """A value for java.util.Properties, which reads ISO 8859-1, backslashes as escapes, and the rest by \\uXXXX."""
    return "".join(each if ord(each) < 128 else f"\\u{ord(each):04x}" for each in value.replace("\\", "\\\\"))
