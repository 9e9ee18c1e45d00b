"""SE-04 with a real Kafka: ways in that deliver, causes that are said in log, status and outcome, and rotation."""

from __future__ import annotations

import json
import subprocess
import threading
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from client_stub import Producer
from sidecar.testing.certificates import LOCAL_HOSTS, CertificateAuthority
from sidecar.testing.daemon import SidecarDaemon, StartDaemon, cli
from sidecar.testing.kafka_cluster import KafkaCluster
from sidecar.testing.kafka_listeners import Listener
from sidecar.testing.reading import read_topic
from sidecar.testing.waiting import wait_until

pytestmark = [pytest.mark.kafka, pytest.mark.process]

TIMEOUT_S = 30
CONNECTIONS_MAX = 60
LOG_LINES_MAX = 6


@pytest.fixture(scope="module")
def secure() -> Iterator[KafkaCluster]:
    authority = CertificateAuthority()
    listeners = [
        Listener("SSL", relayed=True),
        Listener("SSL", "OLD_TLS", tls=("TLSv1.2",)),
        Listener("SSL", "MUTUAL", client_auth="required", relayed=True),
        Listener(
            "SSL",
            "ELSEWHERE",
            certificate=authority.issue("b7", hosts=("broker.example",)),
            relayed=True,
        ),
        Listener(
            "SSL",
            "EXPIRED",
            certificate=authority.issue("b7", hosts=LOCAL_HOSTS, begins_s=-99, ends_s=-9),
            relayed=True,
        ),
    ]
    topics = {"good-0": 2, "good-1": 2, "good-2": 2, "rotated": 3}
    with KafkaCluster(topics=topics, listeners=listeners, authority=authority) as cluster:
        yield cluster


def delivered(daemon: SidecarDaemon, topic: str, count: int = 200) -> None:
    with Producer(run_dir=str(daemon.run_dir), client_name=topic) as producer:
        deliveries = [producer.send(topic, value=b"%04d" % number) for number in range(count)]
        for each in deliveries:
            each.result(timeout=TIMEOUT_S)


def our_certificate(secure: KafkaCluster, folder: Path) -> dict[str, str]:
    path = str(secure.authority.issue("us").write(folder / "us.pem"))
    return {"ssl.certificate.location": path, "ssl.key.location": path}


@pytest.mark.parametrize(("number", "listener"), list(enumerate(["SSL", "OLD_TLS", "MUTUAL"])))
def test_good_ones_deliver(
    secure: KafkaCluster, start_daemon: StartDaemon, tmp_path: Path, number: int, listener: str
) -> None:
    settings = secure.client_settings(listener)
    if listener == "MUTUAL":
        settings |= our_certificate(secure, tmp_path)
    daemon = start_daemon(secure.servers(listener), settings=settings)
    topic = f"good-{number}"
    delivered(daemon, topic)
    found = read_topic(secure.bootstrap_servers, topic)
    assert sorted(each.value or b"" for each in found) == [b"%04d" % number for number in range(200)]
    listed = subprocess.run(
        [*cli("topics"), "--run-dir", str(daemon.run_dir), topic], capture_output=True, text=True, check=True
    )
    assert "2 partitions" in listed.stdout


FAULTS = {
    "wrong host": (
        "ELSEWHERE",
        {},
        'its certificate "b7" is not for the name 127.0.0.1, only for broker.example',
    ),
    "expired": ("EXPIRED", {}, 'its certificate "b7" has expired on 20'),
    "unknown CA": ("SSL", {"ssl.ca.location": "{other}"}, "leads to no CA that is trusted here"),
    "no client certificate": ("MUTUAL", {}, "require a client certificate"),
    "plaintext to TLS": (
        "SSL",
        {"security.protocol": "PLAINTEXT"},
        "set security.protocol to SSL or SASL_SSL",
    ),
}


@pytest.mark.parametrize("name", FAULTS)
def test_what_is_wrong_is_said_in_one_sentence(
    secure: KafkaCluster, start_daemon: StartDaemon, tmp_path: Path, name: str
) -> None:
    listener, changes, words = FAULTS[name]
    other = CertificateAuthority("somebody else").write(tmp_path / "other.pem")
    settings = secure.client_settings(listener) | {
        key: value.format(other=other) for key, value in changes.items()
    }
    if settings["security.protocol"] == "PLAINTEXT":
        del settings["ssl.ca.location"]
    relay = secure.relay(listener)
    before = len(relay.accepted_s)
    begun_s = time.monotonic()
    daemon = start_daemon(
        secure.servers(listener),
        wait=False,
        settings=settings
        | {"max.block.ms": 3_000, "delivery.timeout.ms": 5_000, "request.timeout.ms": 4_000},
    )
    with Producer(run_dir=str(daemon.run_dir), client_name="waiting") as producer:
        fate = producer.send("good-0", value=b"waits").exception(timeout=TIMEOUT_S)
        assert fate is not None
        assert words in str(fate), "the cause of the record that waited"
        pids = pids_of(daemon)
        wait_until(lambda: time.monotonic() - begun_s > 10, "ten seconds of trying", timeout_s=15)
        assert pids_of(daemon) == pids, "the same processes"
    assert len(relay.accepted_s) - before <= CONNECTIONS_MAX
    shown = subprocess.run(
        [*cli("status"), "--run-dir", str(daemon.run_dir)], capture_output=True, text=True, check=False
    )
    assert words in shown.stdout + shown.stderr
    lines = [line for line in daemon.log_path.read_text().splitlines() if words in line]
    assert 1 <= len(lines) <= LOG_LINES_MAX


def pids_of(daemon: SidecarDaemon) -> list[int]:
    info = json.loads((daemon.run_dir / "daemon.json").read_text())
    return [info["pid"], *(each["pid"] for each in info["workers"])]


def test_rotation_under_load(secure: KafkaCluster, start_daemon: StartDaemon, tmp_path: Path) -> None:
    """CA, our certificate and the broker's change at 500 records/s under cuts: 0 lost or doubled."""
    folder = tmp_path / "tls"
    folder.mkdir()
    ca = secure.authority.write(folder / "ca.pem")
    own = secure.authority.issue("us").write(folder / "us.pem")
    daemon = start_daemon(
        secure.servers("MUTUAL"),
        settings={
            "security.protocol": "SSL",
            "ssl.ca.location": str(ca),
            "ssl.certificate.location": str(own),
            "ssl.key.location": str(own),
        },
    )
    relay = secure.relay("MUTUAL")
    stop = threading.Event()
    sent: list[bytes] = []
    failed: list[BaseException] = []

    def send() -> None:
        with Producer(run_dir=str(daemon.run_dir), client_name="load") as producer:
            deliveries = []
            while not stop.wait(0.02):
                for _ in range(10):
                    value = b"%06d" % len(sent)
                    deliveries.append(producer.send("rotated", value=value, key=value))
                    sent.append(value)
            for each in deliveries:
                error = each.exception(timeout=TIMEOUT_S)
                if error is not None:
                    failed.append(error)

    thread = threading.Thread(target=send)
    thread.start()
    try:
        wait_until(lambda: len(sent) > 200, "the load")
        relay.cut()
        # A half-written file: the old one stays in use, which is said once a process.
        whole = own.read_text()
        own.write_text(whole[: len(whole) // 2])
        for _ in range(3):
            opened = len(relay.accepted_s)
            relay.cut()
            wait_until(lambda opened=opened: len(relay.accepted_s) > opened, "a new connection")  # type: ignore[misc]
        # Another authority for both sides: ours trusts both, then the broker changes, then ours has the new one only.
        new = CertificateAuthority("the next one")
        ca.write_text(secure.authority.certificate_pem + new.certificate_pem)
        new.issue("us").write(own)
        secure.security().rotate("MUTUAL", new.issue("broker", hosts=LOCAL_HOSTS), trusted=new)
        new.write(ca)
        for _ in range(3):
            count = len(sent)
            relay.cut()
            wait_until(lambda count=count: len(sent) > count + 100, "the load")  # type: ignore[misc]
    finally:
        stop.set()
        thread.join()
    assert not failed
    found = Counter(each.value for each in read_topic(secure.bootstrap_servers, "rotated"))
    assert set(found) == set(sent)
    assert max(found.values()) == 1
    lines = [line for line in daemon.log_path.read_text().splitlines() if "cut off" in line]
    assert 1 <= len(lines) <= 3
    assert all("Connections go on with what was read before." in line for line in lines)
