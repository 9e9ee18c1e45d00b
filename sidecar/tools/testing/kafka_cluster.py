"""A real Apache Kafka for tests, demo and bench: KRaft, on 127.0.0.1, removed completely at exit.

Each node is broker and controller in one JVM with a small heap, so that several clusters fit on one machine. ``python
-m sidecar.tools.testing.kafka_cluster --topics flights:6`` prints ``bootstrap.servers=...`` and runs until it is
killed.
"""

from __future__ import annotations

import base64
import contextlib
import os
import shutil
import signal
import socket
import subprocess
import tempfile
import uuid
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING

from sidecar.tools.testing.kafka_admin import KafkaAdmin
from sidecar.tools.testing.kafka_jars import KafkaUnavailable, java_command, resolve_jars
from sidecar.tools.testing.kafka_listeners import Listener, jvm_options
from sidecar.tools.testing.kafka_node import KafkaNode
from sidecar.tools.testing.kafka_security import KafkaSecurity
from sidecar.tools.testing.kafka_topics import create_topics
from sidecar.tools.testing.tcp_relay import TcpRelay
from sidecar.tools.testing.waiting import wait_until

if TYPE_CHECKING:  # it needs cryptography, which the demo does without
    from sidecar.tools.testing.certificates import CertificateAuthority

DIR_PREFIX = "kafka-sidecar-cluster-"
START_TIMEOUT_S = 180.0
"""Enough for three JVMs that start at once on two busy CPUs. A node that ends is noticed at once."""
CONTROLLER_ID = 100
START_ATTEMPTS = 3


class KafkaCluster:
    """A cluster of ``node_count`` nodes in one temporary folder; use as a context manager.

    ``version``: a release line ("3.9") or a full version, by default that of the pom. Every node is broker and
    controller; with ``own_controller`` the nodes are brokers only and one more JVM is the controller, so that any
    number of brokers may be down. ``light`` (by default with more than one node): JVMs that start sooner and are
    slower under load. ``log_requests``: for :mod:`sidecar.tools.testing.kafka_request_log`. ``jvm_options``: further
    options for every node. ``log_dirs``: number of log folders of each node. Node ids count from 1, indexes of
    ``nodes`` from 0. ``listeners``: further listeners with TLS and SASL; ``authority`` signs their certificates (by
    default the cluster makes one). ``acls``: users need grants, except ``super_users`` and ANONYMOUS. ANONYMOUS is the
    user of the PLAINTEXT listener, and of every connection without SASL or a client certificate.

    Raises KafkaUnavailable (one sentence) when Java, Maven or the download is missing, RuntimeError with the end of
    the broker's log when it does not start. Start it from the main thread.
    """

    def __init__(
        self,
        node_count: int = 1,
        *,
        topics: Mapping[str, int] | None = None,
        heap_mb: int = 512,
        properties: Mapping[str, str] | None = None,
        version: str | None = None,
        own_controller: bool = False,
        light: bool | None = None,
        log_requests: bool = False,
        jvm_options: Sequence[str] = (),
        log_dirs: int = 1,
        listeners: Sequence[Listener] = (),
        authority: CertificateAuthority | None = None,
        acls: bool = False,
        super_users: Sequence[str] = (),
    ) -> None:
        self.features: dict[str, int] = {}
        """Levels with which the cluster is formatted, in place of its release's own. To be set before the start."""
        self.listeners = {each.key: each for each in listeners}
        self._authority = authority
        self._relays: list[dict[Listener, TcpRelay]] = []
        self.nodes: list[KafkaNode] = []
        self._controller: KafkaNode | None = None
        self._version = version
        self._own_controller = own_controller
        self._log_requests = log_requests
        self._jvm_options = tuple(jvm_options)
        self._log_dirs = log_dirs
        self._light = node_count > 1 if light is None else light
        self._node_count = node_count
        self._topics = dict(topics or {})
        self._heap_mb = heap_mb
        self._properties = {**(_acl_properties(super_users) if acls else {}), **(properties or {})}
        self._folder: Path | None = None
        self._java = ""
        self._jars = Path()

    @property
    def bootstrap_servers(self) -> str:
        return ",".join(node.address for node in self.nodes)

    def servers(self, listener: str) -> str:
        """Return bootstrap.servers for that listener; ``bootstrap_servers`` is for PLAINTEXT."""
        return ",".join(node.address_of(self.listeners[listener]) for node in self.nodes)

    def client_settings(self, listener: str, mechanism: str = "", user: str = "") -> dict[str, str]:
        """Return the client settings for that listener, with the names that librdkafka and the daemon use.

        ``user``: one of the listener's users; its password is included. A client certificate or token is up to the
        caller.
        """
        wanted = self.listeners[listener]
        found = {"security.protocol": str(wanted.protocol)}
        if wanted.has_tls:
            found["ssl.ca.location"] = str(self.secrets_dir / "ca.pem")
        if mechanism:
            found["sasl.mechanism"] = mechanism
        if user:
            found |= {"sasl.username": user, "sasl.password": (wanted.users or {})[user]}
        return found

    def relay(self, listener: str, index: int = 0) -> TcpRelay:
        """Return the relay in front of one node's listener; the listener must have ``relayed``."""
        return self._relays[index][self.listeners[listener]]

    @property
    def authority(self) -> CertificateAuthority:
        """The authority that signed the brokers' certificates."""
        from sidecar.tools.testing.certificates import CertificateAuthority

        if self._authority is None:
            self._authority = CertificateAuthority()
        return self._authority

    @property
    def secrets_dir(self) -> Path:
        """Folder of certificates and keys; ``ca.pem`` is the authority's certificate."""
        assert self._folder is not None, "the cluster is not started"
        return self._folder / "secrets"

    def security(self) -> KafkaSecurity:
        """Return an operator's client for users, grants and certificates."""
        return KafkaSecurity(
            self.bootstrap_servers,
            list(self.listeners.values()),
            self.secrets_dir,
            [{each.key: port for each, port in node.listeners.items()} for node in self.nodes],
        )

    @property
    def broker_ports(self) -> list[int]:
        return [node.broker_port for node in self.nodes]

    def start(self) -> None:
        """Format and start all nodes, wait until they serve, and create the topics. It takes about 6 seconds."""
        self._java = java_command()
        self._jars = resolve_jars(self._version)
        for attempt in range(1, START_ATTEMPTS + 1):
            try:
                self._start_once()
                break
            except RuntimeError as error:
                self.stop()
                # Another process may have taken a port that was free.
                if attempt == START_ATTEMPTS or "Address already in use" not in str(error):
                    raise
        if self._topics:
            self.create_topics(self._topics)
        if self.listeners:
            self.security().set_first_users()

    def _start_once(self) -> None:
        _sweep_abandoned()
        self._folder = Path(tempfile.mkdtemp(prefix=f"{DIR_PREFIX}{os.getpid()}-"))
        count, further = self._node_count, list(self.listeners.values())
        ports = free_ports(2 * count + 1 + count * len(further))
        listener_ports = iter(ports[2 * count + 1 :])
        roles = "broker" if self._own_controller else "broker,controller"
        self.nodes = [
            KafkaNode(
                i + 1,
                self._folder / f"node-{i + 1}",
                ports[2 * i],
                ports[2 * i + 1],
                roles=roles,
                log_dirs=self._log_dirs,
                listeners={each: next(listener_ports) for each in further},
            )
            for i in range(count)
        ]
        if self._own_controller:
            self._controller = KafkaNode(
                CONTROLLER_ID, self._folder / "controller", 0, ports[2 * count], roles="controller"
            )
        security_properties = self._open_listeners()
        everyone = self._everyone()
        voters = ",".join(
            f"{node.node_id}@127.0.0.1:{node.controller_port}"
            for node in everyone
            if "controller" in node.roles
        )
        cluster_id = base64.urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=").replace("-", "A", 1)
        for node in everyone:
            properties = security_properties if node.is_broker else {}
            node.write_config(voters, self._node_count, {**properties, **self._properties})
            node.format(self._java, self._jars, cluster_id, self.features)
        for node in everyone:
            self._spawn(node)
        self.wait_started()

    def _open_listeners(self) -> dict[str, str]:
        """Start the relays and write the certificates, which all nodes share. Returns the brokers' settings
        for them.
        """
        if not self.listeners:
            return {}
        folder = self.secrets_dir
        folder.mkdir(mode=0o700)
        self.authority.write(folder / "ca.pem")
        for node in self.nodes:
            self._relays.append({})
            for each, port in node.listeners.items():
                if each.relayed:
                    relay = TcpRelay(port)
                    relay.start()
                    self._relays[-1][each] = relay
                    node.advertised[each] = relay.port
        found: dict[str, str] = {}
        for each in self.listeners.values():
            found |= each.properties(folder, self.authority)
        return found

    def _everyone(self) -> list[KafkaNode]:
        return self.nodes if self._controller is None else [self._controller, *self.nodes]

    def _spawn(self, node: KafkaNode) -> None:
        node.spawn(
            self._java,
            self._jars,
            self._heap_mb,
            light=self._light,
            log_requests=self._log_requests,
            jvm_options=[
                *jvm_options(list(self.listeners.values()), self.secrets_dir),
                *self._jvm_options,
            ],
        )

    def wait_started(self) -> None:
        """Wait until the log of every running node says that it serves."""
        running = [node for node in self._everyone() if node.process is not None]
        wait_until(
            lambda: all(node.is_started() for node in running),
            "Apache Kafka to start",
            timeout_s=START_TIMEOUT_S,
            describe=lambda: "\n".join(node.log_tail() for node in running),
        )

    def kill_node(self, index: int) -> None:
        """Kill one node with SIGKILL; its data stays for :meth:`restart_node`."""
        self.nodes[index].end(clean=False)

    def pause_node(self, index: int) -> None:
        """Stop one node with SIGSTOP: its sockets stay open and nothing answers, until :meth:`resume_node`."""
        self.nodes[index].signal(signal.SIGSTOP)

    def resume_node(self, index: int) -> None:
        self.nodes[index].signal(signal.SIGCONT)

    def stop_node(self, index: int) -> None:
        self.nodes[index].end(clean=True)

    def restart_node(self, index: int) -> None:
        """Start a stopped or killed node again with the same ports and data, and wait until it serves."""
        node = self.nodes[index]
        node.log_path.rename(node.log_path.with_suffix(".previous.log"))
        self._spawn(node)
        self.wait_started()

    def run_tool(self, main_class: str, *words: str) -> str:
        """Run one of Kafka's own tools against the cluster and return its output. Each call starts a JVM."""
        command = [self._java, "-Xmx128m", "-XX:TieredStopAtLevel=1", "-cp", f"{self._jars}/*", main_class]
        done = subprocess.run(
            [*command, "--bootstrap-server", self.bootstrap_servers, *words],
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode != 0:
            raise RuntimeError(f"{main_class} failed: {done.stdout}{done.stderr}")
        return done.stdout

    def set_quota(self, client_id: str, byte_rate: int | None) -> None:
        """Limit the bytes per second that clients of that id may produce (kafka-configs); None removes the limit."""
        change = (
            ["--delete-config", "producer_byte_rate"]
            if byte_rate is None
            else ["--add-config", f"producer_byte_rate={byte_rate}"]
        )
        words = ["--alter", "--entity-type", "clients", "--entity-name", client_id, *change]
        try:
            self.run_tool("org.apache.kafka.tools.ConfigCommand", *words)
        except RuntimeError as error:
            if "ClassNotFoundException" not in str(error):
                raise
            self.run_tool("kafka.admin.ConfigCommand", *words)  # its place before Kafka 4.4

    def admin(self) -> KafkaAdmin:
        """Return an operator's client: leaders, replicas, deletion, growth, settings."""
        return KafkaAdmin(self.bootstrap_servers)

    def create_topics(
        self,
        topics: Mapping[str, int],
        *,
        config: Mapping[str, str] | None = None,
        replication_factor: int = -1,
    ) -> None:
        """Create topics (name → partitions) and wait until every partition has a leader."""
        create_topics(self.bootstrap_servers, topics, config=config, replication_factor=replication_factor)

    def stop(self) -> None:
        """Stop every node (with SIGKILL, since its data is not kept) and remove the folder. Safe to call twice."""
        for node in self._everyone():
            node.end(clean=False)
        self.nodes = []
        for relays in self._relays:
            for relay in relays.values():
                relay.stop()
        self._relays = []
        self._controller = None
        if self._folder is not None:
            shutil.rmtree(self._folder, ignore_errors=True)
            self._folder = None

    def __enter__(self) -> KafkaCluster:
        try:
            self.start()
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()


def _acl_properties(super_users: Sequence[str]) -> dict[str, str]:
    return {
        "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
        "super.users": ";".join(f"User:{name}" for name in ("ANONYMOUS", *super_users)),
    }


def free_ports(count: int) -> list[int]:
    """Return ports of 127.0.0.1 that are free right now."""
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for each in sockets:
            each.bind(("127.0.0.1", 0))
        return [int(each.getsockname()[1]) for each in sockets]


def parse_topics(specs: Sequence[str]) -> dict[str, int]:
    """Convert ``["flights:6"]`` to ``{"flights": 6}``; one partition when no number is given. Raises ValueError."""
    topics: dict[str, int] = {}
    for spec in specs:
        name, _, count = spec.partition(":")
        if not name or (count and not count.isdigit()):
            raise ValueError(f"--topics takes NAME or NAME:PARTITIONS, got {spec!r}")
        topics[name] = int(count or 1)
    return topics


def _sweep_abandoned() -> None:
    """Remove folders of clusters whose owner was killed before it could clean up."""
    for folder in Path(tempfile.gettempdir()).glob(f"{DIR_PREFIX}*"):
        owner = folder.name.removeprefix(DIR_PREFIX).partition("-")[0]
        if owner.isdigit() and not Path(f"/proc/{owner}").exists():
            shutil.rmtree(folder, ignore_errors=True)


@contextlib.contextmanager
def exit_on_sigterm() -> Iterator[None]:
    """Turn SIGTERM into SystemExit(143) inside the block, so that context managers clean up."""

    def leave(number: int, _frame: object) -> None:
        raise SystemExit(128 + number)

    previous = signal.signal(signal.SIGTERM, leave)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, previous)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a cluster in the foreground until SIGINT or SIGTERM."""
    import argparse

    parser = argparse.ArgumentParser(
        prog="python -m sidecar.tools.testing.kafka_cluster", description=__doc__
    )
    parser.add_argument("--nodes", type=int, default=1)
    parser.add_argument("--topics", nargs="*", default=[], metavar="NAME[:PARTITIONS]")
    parser.add_argument("--heap-mb", type=int, default=512)
    parser.add_argument("--kafka-version", metavar="VERSION", help='e.g. "3.9"; the first use downloads it')
    parser.add_argument("-X", dest="properties", action="append", default=[], metavar="NAME=VALUE")
    options = parser.parse_args(arguments)
    try:
        topics = parse_topics(options.topics)
        properties = dict(pair.split("=", 1) for pair in options.properties)
    except ValueError as error:
        parser.error(str(error))
    with exit_on_sigterm():
        try:
            with KafkaCluster(
                options.nodes,
                topics=topics,
                heap_mb=options.heap_mb,
                properties=properties,
                version=options.kafka_version,
            ) as cluster:
                print(f"bootstrap.servers={cluster.bootstrap_servers}", flush=True)
                signal.pause()
        except (KafkaUnavailable, ValueError) as error:
            print(error)
            return 1
        except KeyboardInterrupt:
            return 130
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
