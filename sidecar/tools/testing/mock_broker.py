"""librdkafka's mock cluster as a simple broker without Java, in a process of its own.

It checks neither sequences nor epochs nor CRCs, so it cannot test order or de-duplication. It keeps about 5 MB per
partition, answers quickly, and fails on command. ``python -m sidecar.tools.testing.mock_broker`` prints
``bootstrap.servers=...`` and executes commands from standard input until that is closed:

``error API CODE...`` (the next answers to that API key carry these codes) · ``down ID`` · ``up ID`` · ``leader TOPIC
PARTITION ID`` · ``rtt ID MS`` · ``topic NAME PARTITIONS``
"""

from __future__ import annotations

import ctypes
import importlib.util
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from sidecar.common.python_child import python_command
from sidecar.tools.testing.child_processes import die_with_parent
from sidecar.tools.testing.kafka_jars import KafkaUnavailable
from sidecar.tools.testing.running import Running

_PRODUCER_TYPE = 0


def find_librdkafka() -> Path:
    """Return the path of the librdkafka in the confluent-kafka wheel, without importing it."""
    spec = importlib.util.find_spec("confluent_kafka")
    if spec is None or spec.origin is None:
        raise KafkaUnavailable("The mock cluster needs confluent-kafka: pip install 'kafka-sidecar[demo]'.")
    bundled = Path(spec.origin).parents[1] / "confluent_kafka.libs"
    found = sorted(bundled.glob("librdkafka*.so*"))
    if not found:
        raise KafkaUnavailable(f"No librdkafka in {bundled}: install confluent-kafka from its wheel.")
    return found[0]


class MockCluster:
    """The cluster itself, inside this process. Its memory is freed only when the process ends."""

    def __init__(self, broker_count: int = 3) -> None:
        library = ctypes.CDLL(str(find_librdkafka()))
        library.rd_kafka_new.restype = ctypes.c_void_p
        library.rd_kafka_new.argtypes = [ctypes.c_int, ctypes.c_void_p, ctypes.c_char_p, ctypes.c_size_t]
        library.rd_kafka_mock_cluster_new.restype = ctypes.c_void_p
        library.rd_kafka_mock_cluster_new.argtypes = [ctypes.c_void_p, ctypes.c_int]
        library.rd_kafka_mock_cluster_bootstraps.restype = ctypes.c_char_p
        library.rd_kafka_mock_cluster_bootstraps.argtypes = [ctypes.c_void_p]
        library.rd_kafka_mock_topic_create.argtypes = [
            ctypes.c_void_p,
            ctypes.c_char_p,
            ctypes.c_int,
            ctypes.c_int,
        ]
        library.rd_kafka_mock_push_request_errors_array.restype = None
        library.rd_kafka_mock_push_request_errors_array.argtypes = [
            ctypes.c_void_p,
            ctypes.c_int16,
            ctypes.c_size_t,
            ctypes.POINTER(ctypes.c_int),
        ]
        library.rd_kafka_mock_partition_set_leader.argtypes = [
            ctypes.c_void_p,
            ctypes.c_char_p,
            ctypes.c_int32,
            ctypes.c_int32,
        ]
        library.rd_kafka_mock_broker_set_down.argtypes = [ctypes.c_void_p, ctypes.c_int32]
        library.rd_kafka_mock_broker_set_up.argtypes = [ctypes.c_void_p, ctypes.c_int32]
        library.rd_kafka_mock_broker_set_rtt.argtypes = [ctypes.c_void_p, ctypes.c_int32, ctypes.c_int]
        self._library = library
        self._broker_count = broker_count
        message = ctypes.create_string_buffer(512)
        library.rd_kafka_conf_new.restype = ctypes.c_void_p
        conf = library.rd_kafka_conf_new()
        library.rd_kafka_conf_set.argtypes = [ctypes.c_void_p, *[ctypes.c_char_p] * 3, ctypes.c_size_t]
        # Without this it warns at every start that a producer without bootstrap.servers reaches no broker.
        library.rd_kafka_conf_set(conf, b"log_level", b"3", message, len(message))
        handle = library.rd_kafka_new(_PRODUCER_TYPE, conf, message, len(message))
        if not handle:
            raise RuntimeError(f"librdkafka refused to start: {message.value.decode()}")
        self._cluster = library.rd_kafka_mock_cluster_new(handle, broker_count)
        if not self._cluster:
            raise RuntimeError("librdkafka could not open its mock cluster")

    @property
    def bootstrap_servers(self) -> str:
        answer: bytes = self._library.rd_kafka_mock_cluster_bootstraps(self._cluster)
        return answer.decode()

    def create_topic(self, name: str, partitions: int) -> None:
        code = self._library.rd_kafka_mock_topic_create(
            self._cluster, name.encode(), partitions, min(3, self._broker_count)
        )
        if code:
            raise RuntimeError(f"the mock cluster refused topic {name!r} with error {code}")

    def obey(self, line: str) -> None:
        """Execute one command line; raises ValueError for a wrong one."""
        words = line.split()
        try:
            match words:
                case ["error", api, *codes]:
                    errors = (ctypes.c_int * len(codes))(*map(int, codes))
                    self._library.rd_kafka_mock_push_request_errors_array(
                        self._cluster, int(api), len(codes), errors
                    )
                case ["down", broker]:
                    self._library.rd_kafka_mock_broker_set_down(self._cluster, int(broker))
                case ["up", broker]:
                    self._library.rd_kafka_mock_broker_set_up(self._cluster, int(broker))
                case ["leader", topic, partition, broker]:
                    self._library.rd_kafka_mock_partition_set_leader(
                        self._cluster, topic.encode(), int(partition), int(broker)
                    )
                case ["rtt", broker, ms]:
                    self._library.rd_kafka_mock_broker_set_rtt(self._cluster, int(broker), int(ms))
                case ["topic", name, partitions]:
                    self.create_topic(name, int(partitions))
                case _:
                    raise ValueError("unknown command")
        except ValueError as error:
            raise ValueError(f"mock broker: cannot obey {line.strip()!r}: {error}") from None


class MockBroker(Running):
    """The mock cluster in a child process: ``with MockBroker({"flights": 6}) as broker``."""

    def __init__(self, topics: Mapping[str, int] | None = None, *, broker_count: int = 3) -> None:
        self._topics = dict(topics or {})
        self._broker_count = broker_count
        self._process: subprocess.Popen[str] | None = None
        self.bootstrap_servers = ""

    def start(self) -> None:
        """Start the child and wait for its bootstrap line; raises RuntimeError when there is none."""
        find_librdkafka()
        self._process = subprocess.Popen(
            python_command(
                "sidecar.tools.testing.mock_broker",
                "--brokers",
                str(self._broker_count),
                "--topics",
                *(f"{name}:{count}" for name, count in self._topics.items()),
            ),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line.startswith("bootstrap.servers="):
            self.stop()
            raise RuntimeError(f"the mock cluster did not start: {line.strip() or 'no output'}")
        self.bootstrap_servers = line.strip().partition("=")[2]

    def command(self, line: str) -> None:
        """Send one command and wait until it is done; raises ValueError when it is refused."""
        assert self._process is not None and self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(line + "\n")
        self._process.stdin.flush()
        answer = self._process.stdout.readline().strip()
        if answer != "ok":
            raise ValueError(answer)

    def stop(self) -> None:
        if self._process is None:
            return
        self._process.kill()
        self._process.wait()
        for stream in (self._process.stdin, self._process.stdout):
            if stream is not None:
                stream.close()
        self._process = None


def main(arguments: Sequence[str] | None = None) -> int:
    """Serve until standard input ends."""
    import argparse

    from sidecar.tools.testing.kafka_cluster import parse_topics

    parser = argparse.ArgumentParser(prog="python -m sidecar.tools.testing.mock_broker", description=__doc__)
    parser.add_argument("--brokers", type=int, default=3)
    parser.add_argument("--topics", nargs="*", default=[], metavar="NAME[:PARTITIONS]")
    options = parser.parse_args(arguments)
    die_with_parent()
    cluster = MockCluster(options.brokers)
    for name, count in parse_topics(options.topics).items():
        cluster.create_topic(name, count)
    print(f"bootstrap.servers={cluster.bootstrap_servers}", flush=True)
    for line in sys.stdin:
        try:
            cluster.obey(line)
            print("ok", flush=True)
        except (ValueError, RuntimeError) as error:
            print(error, flush=True)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
