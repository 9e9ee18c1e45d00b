"""Goal: the image does the main job with least rights, and a killed container loses nothing.

``make test-image`` runs it. Kafka is outside of the containers, and the judge is an independent consumer.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from sidecar.tools.testing.kafka_cluster import KafkaCluster
from sidecar.tools.testing.kafka_topics import NewTopic
from sidecar.tools.testing.waiting import wait_until
from tests.deploy import containers
from tests.deploy.containers import BASE, IMAGE, ROOT, Containers
from tests.deploy.outcome import Sender
from tests.tools import needs

pytestmark = [
    pytest.mark.long,
    pytest.mark.kafka,
    pytest.mark.process,
    needs(*containers.NEEDED),
]

SENDER = Path(__file__).with_name("steady_sender.py")
PYTHON = "/opt/kafka-sidecar/bin/python"
BUILD_S_MAX = 180
OVER_BASE_BYTES_MAX = 120_000_000


@pytest.fixture(scope="module")
def engine() -> Iterator[Containers]:
    engine = Containers()
    try:
        seconds = engine.build()
        print(f"built in {seconds:.0f} s")
        assert seconds < BUILD_S_MAX
        yield engine
    finally:
        engine.close()


class Daemon:
    """The image's daemon on the two volumes of a test, its clients beside it."""

    def __init__(self, engine: Containers, kafka: KafkaCluster, name: str, shm_size: str = "64m") -> None:
        self._engine = engine
        self._kafka = kafka
        self._name = name
        self._shm_size = shm_size
        self._serial = 0
        self.volumes = [
            *("--volume", f"{name}-run:/run/kafka-sidecar"),
            *("--volume", f"{name}-state:/var/lib/kafka-sidecar"),
        ]
        self.log = Path()

    @property
    def container(self) -> str:
        return f"{self._name}-{self._serial}"

    def start(self, *settings: str) -> None:
        """A new container, as an upgrade or a scheduler makes it."""
        self._serial += 1
        words = ["-X", f"bootstrap.servers={self._kafka.bootstrap_servers}", "-X", "http.listen=127.0.0.1:0"]
        options = [*self.volumes, "--network", "host", "--shm-size", self._shm_size]
        self.log = self._engine.start(self.container, "run", *words, *settings, options=options)

    def wait_running(self) -> None:
        def runs() -> bool:
            return self._engine.execute(self.container, "kafka-sidecar", "status").returncode == 0

        wait_until(runs, "the daemon in the container", timeout_s=60, describe=self.log.read_text)

    def send(self, topic: str, rate: int, seconds: int) -> Sender:
        """A client in a container of its own: another user, in the group, with the run dir and nothing else."""
        here = ["--volume", f"{SENDER}:/sender.py:ro", "--network", "host", "--entrypoint", PYTHON]
        there = [
            "--volume",
            f"{self._name}-run:/run/kafka-sidecar:ro",
            "--user",
            "4711:4711",
            "--group-add",
            "10001",
        ]
        words = self._engine.words(f"{self._name}-client", *there, *here)
        return Sender([*words, IMAGE, "/sender.py", "/run/kafka-sidecar", topic, str(rate), str(seconds)])


def test_labels_of_the_image(engine: Containers) -> None:
    image = engine.inspect(IMAGE)
    config = image["Config"]
    assert config["User"] == "10001:10001"
    assert config["StopSignal"] == "SIGTERM"
    assert set(config["Volumes"]) == {"/run/kafka-sidecar", "/var/lib/kafka-sidecar"}
    assert image["Healthcheck"]["Test"] == ["CMD", "kafka-sidecar", "status", "--alive"]
    labels = {name.removeprefix("org.opencontainers.image.") for name in config["Labels"]}
    assert labels >= {"title", "version", "revision", "source", "licenses", "description", "documentation"}
    over_base = image["Size"] - engine.inspect(BASE)["Size"]
    print(f"{over_base / 1e6:.0f} MB over the base")
    assert over_base < OVER_BASE_BYTES_MAX
    options = ["--entrypoint", "/bin/ls"]
    packages = engine.podman(
        *_plain(engine, "look", options), "/opt/kafka-sidecar/lib/python3.11/site-packages"
    )
    assert "uvloop" in packages and "setuptools" not in packages and "\npip" not in packages


def test_the_bill_of_materials_from_inside(engine: Containers) -> None:
    options = ["--volume", f"{ROOT / 'deploy' / 'image_bom.py'}:/bom.py:ro", "--entrypoint", "python"]
    bill = json.loads(engine.podman(*_plain(engine, "bom", options), "/bom.py"))
    purls = {each["purl"].split("@")[0] for each in bill["components"]}
    assert purls >= {"pkg:pypi/kafka-sidecar", "pkg:pypi/uvloop", "pkg:deb/debian/libc6"}
    assert len(purls) == len(bill["components"])


def test_directories_of_a_node_and_an_emptydir(engine: Containers, tmp_path: Path) -> None:
    """Volumes as the kubelet gives them: root's directories, which the init container prepares; and open ones of the
    fsGroup."""
    daemon_set = (ROOT / "deploy" / "kubernetes" / "daemonset.yaml").read_text()
    prepare = re.findall(r"^ +(install -d .*)$", daemon_set, re.MULTILINE)
    assert len(prepare) == 2
    run, state = tmp_path / "run", tmp_path / "state"
    volumes = ["--volume", f"{run}:/run/kafka-sidecar", "--volume", f"{state}:/var/lib/kafka-sidecar"]
    run.mkdir()
    state.mkdir()
    for _ in range(2):  # of root at first, of the daemon when the pod comes again
        options = [*volumes, "--user", "0:0", "--cap-add", "chown,fowner", "--entrypoint", "/bin/sh"]
        engine.podman(*_plain(engine, "prepare", options), "-ec", "\n".join(prepare))
        modes = [
            (each.stat().st_uid, each.stat().st_gid, each.stat().st_mode & 0o7777) for each in (run, state)
        ]
        assert modes == [(10001, 10001, 0o750), (10001, 10001, 0o700)]
    _lives(engine, "of-node", *volumes)
    for each in (run, state):
        shutil.rmtree(each)
        each.mkdir()
        os.chown(each, 0, 10001)
        each.chmod(0o2777)
    _lives(engine, "empty-dir", *volumes, "--env", "KAFKA_SIDECAR_RUN_DIR=/run/kafka-sidecar/daemon")
    assert (run / "daemon").stat().st_mode & 0o7 == 0 and (run / "daemon").stat().st_gid == 10001


def test_healthy_and_reachable_on_its_port_while_kafka_is_away(engine: Containers) -> None:
    """`-p 9464:9464` leads to the container's address, not to its loopback."""
    log = engine.start("away", "run", "-X", "bootstrap.servers=127.0.0.1:1", options=["--network", "none"])
    alive = ("kafka-sidecar", "status", "--alive")
    wait_until(
        lambda: engine.execute("away", *alive).returncode == 0, "a sign", timeout_s=60, describe=log.read_text
    )
    assert engine.execute("away", "kafka-sidecar", "status").returncode == 1
    listening = engine.execute("away", "cat", "/proc/net/tcp").stdout
    assert f"00000000:{9464:04X}" in listening
    # Without a volume that has a name, this container's pool is nobody's.
    assert "on a volume without a name" in log.read_text()
    assert engine.stop("away") == 0


def test_the_main_job_with_least_rights(engine: Containers, kafka: KafkaCluster, new_topic: NewTopic) -> None:
    topic = new_topic()
    daemon = Daemon(engine, kafka, "job")
    daemon.start()
    daemon.wait_running()
    outcome = daemon.send(topic, 2000, 5).outcome(kafka.bootstrap_servers, topic)
    assert (outcome.sent, outcome.failed) == (10_000, 0)
    status = engine.execute(daemon.container, "cat", "/proc/1/status").stdout
    assert "Uid:\t10001\t10001" in status and "CapEff:\t0000000000000000" in status
    assert "lost when the container" not in daemon.log.read_text()
    assert engine.stop(daemon.container) == 0


@pytest.mark.parametrize("mute_s", [0, 3])
def test_a_killed_container_loses_nothing(
    engine: Containers, kafka: KafkaCluster, new_topic: NewTopic, mute_s: int
) -> None:
    topic = new_topic()
    daemon = Daemon(engine, kafka, f"killed-{mute_s}")
    daemon.start()
    daemon.wait_running()
    sender = daemon.send(topic, 1000, 12)
    sender.wait_delivering()
    time.sleep(2)  # of steady load before the fault
    if mute_s:
        kafka.pause_node(0)
        time.sleep(mute_s)
    try:
        engine.kill(daemon.container)
    finally:
        if mute_s:
            kafka.resume_node(0)
    daemon.start()
    outcome = sender.outcome(kafka.bootstrap_servers, topic)
    print(f"silence of {outcome.longest_silence_s} s")
    assert (outcome.sent, outcome.failed) == (12_000, 0)
    if mute_s:
        assert "Continuing with the segment" in daemon.log.read_text()
    assert engine.stop(daemon.container) == 0


def test_the_test_would_notice(engine: Containers, kafka: KafkaCluster, new_topic: NewTopic) -> None:
    """The same with the pool in the container's /dev/shm: records are lost, and the daemon has said so."""
    topic = new_topic()
    daemon = Daemon(engine, kafka, "shm", shm_size="256m")
    own_shm = ("-X", "pool.path=/dev/shm/pool")
    daemon.start(*own_shm)
    daemon.wait_running()
    assert "(/dev/shm/pool) is in the container's own /dev/shm" in daemon.log.read_text()
    sender = daemon.send(topic, 1000, 8)
    sender.wait_delivering()
    kafka.pause_node(0)
    time.sleep(2)
    try:
        engine.kill(daemon.container)
    finally:
        kafka.resume_node(0)
    daemon.start(*own_shm)
    assert sender.outcome(kafka.bootstrap_servers, topic).failed > 0
    assert engine.stop(daemon.container) == 0


def _plain(engine: Containers, name: str, options: list[str]) -> list[str]:
    """The words of ``podman`` for a look into the image."""
    words = engine.words(name, "--network", "none", *options)
    return [*words[words.index("run") :], IMAGE]


def _lives(engine: Containers, name: str, *options: str) -> None:
    """The daemon starts there, although Kafka is away, and has nothing to say about its pool."""
    words = ["run", "-X", "bootstrap.servers=127.0.0.1:1"]
    log = engine.start(name, *words, options=["--network", "none", *options])
    alive = ("kafka-sidecar", "status", "--alive")
    wait_until(
        lambda: engine.execute(name, *alive).returncode == 0, "a sign", timeout_s=60, describe=log.read_text
    )
    assert "lost when the container" not in log.read_text()
    assert engine.stop(name) == 0
