"""TLS against a real Kafka: SE-04, and certificates that change while records flow."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

from client_stub import errors
from sidecar.tools.testing.certificates import LOCAL_HOSTS, CertificateAuthority
from sidecar.tools.testing.daemon import DaemonFailed, StartDaemon
from sidecar.tools.testing.forked_clients import collect, enter, start_clients
from sidecar.tools.testing.kafka_cluster import KafkaCluster
from sidecar.tools.testing.ledger import Ledger, RecordId
from sidecar.tools.testing.private_text import write_private
from sidecar.tools.testing.reading import read_topic
from sidecar.tools.testing.steady_load import SteadyClient, judge
from sidecar.tools.testing.waiting import wait_until

from .harness import FAST, accounts_balance
from .peers import Daemons, OpenClient, OpenSender
from .secure import USUAL_BACKOFF, Costs, new_topic, seconds_since, settings_for
from .test_real_acls import balance

pytestmark = [pytest.mark.process, pytest.mark.kafka]

WAIT_MS = 4_000
LASTS_S = 10.0


def good_ones(kafka: KafkaCluster, tmp_path: Path) -> list[tuple[str, dict[str, object]]]:
    """(listener, settings): TLS 1.2 and 1.3; the CA by path and as PKCS12. A broker that requires a client
    certificate gets it from PEM files, from one with an encrypted key, inline, and from a PKCS12 store."""
    ca = kafka.authority
    mine = ca.issue("alice")
    certificate, key = tmp_path / "alice.pem", tmp_path / "alice.key"
    certificate.write_text(mine.certificate_pem)
    write_private(key, mine.key_pem())
    encrypted = mine.write(tmp_path / "encrypted.pem", password="pass word")
    store, trust = tmp_path / "alice.p12", tmp_path / "ca.p12"
    store.write_bytes(mine.pkcs12("store pass"))
    trust.write_bytes(ca.pkcs12("trust pass"))
    java_store: dict[str, object] = {
        "ssl.keystore.location": store,
        "ssl.keystore.type": "PKCS12",
        "ssl.keystore.password": "store pass",
        "ssl.truststore.location": trust,
        "ssl.truststore.type": "PKCS12",
        "ssl.truststore.password": "trust pass",
    }
    by_file = {"ssl.certificate.location": certificate, "ssl.key.location": key}
    with_password = {
        "ssl.certificate.location": encrypted,
        "ssl.key.location": encrypted,
        "ssl.key.password": "pass word",
    }
    inline = {"ssl.certificate.pem": mine.certificate_pem, "ssl.key.pem": mine.key_pem()}
    usual = settings_for(kafka, "SSL")
    return [
        ("OLD_TLS", usual),
        ("NEW_TLS", usual | {"ssl.enabled.protocols": "TLSv1.3"}),
        ("ELSEWHERE", usual | {"ssl.endpoint.identification.algorithm": "none"}),
        *(("MUTUAL", usual | each) for each in (by_file, with_password, inline)),
        ("MUTUAL", {**FAST, "security.protocol": "SSL", **java_store}),
    ]


def good_ones_deliver(
    kafka: KafkaCluster, open_client: OpenClient, cases: Sequence[tuple[str, Mapping[str, object]]]
) -> None:
    clients = [open_client(kafka.servers(listener), settings) for listener, settings in cases]
    for (listener, _), open_sender in zip(cases, clients, strict=True):
        with open_sender(new_topic(kafka)) as sender:
            sender.send()
            assert sender.offsets() == [0], listener
            balance(kafka, sender)


def test_se_04_good_ones_deliver(
    secure_kafka: KafkaCluster, start_daemon: StartDaemon, tmp_path: Path
) -> None:
    """SE-04: every good way in delivers."""
    good_ones_deliver(secure_kafka, Daemons(start_daemon), good_ones(secure_kafka, tmp_path))


BadWay = tuple[str, str, dict[str, object]]


def bad_ones(kafka: KafkaCluster, tmp_path: Path) -> list[BadWay]:
    """(words of our error, servers, settings): a wrong host name, an expired and an early certificate, an unknown CA,
    no client certificate, TLS against a plaintext port and the reverse."""
    stranger = CertificateAuthority("another CA").write(tmp_path / "other.pem")
    plain = kafka.bootstrap_servers
    cases: list[tuple[str, str, dict[str, object]]] = [
        ("broker.example", kafka.servers("ELSEWHERE"), {}),
        ("expired", kafka.servers("EXPIRED"), {}),
        ("not valid before", kafka.servers("EARLY"), {}),
        ("no CA that is trusted", kafka.servers("SSL"), {"ssl.ca.location": stranger}),
        ("client certificate", kafka.servers("MUTUAL"), {}),
        ("plaintext port", plain, {}),
        ("TLS", kafka.servers("SSL"), {"security.protocol": "PLAINTEXT"}),
    ]
    times = {
        "max.block.ms": WAIT_MS,
        "request.timeout.ms": 1_000,
        "delivery.timeout.ms": WAIT_MS,
        "socket.connection.setup.timeout.ms": 2_000,
        **USUAL_BACKOFF,
    }
    usual = settings_for(kafka, "SSL")
    found = []
    for words, servers, settings in cases:
        merged = {**usual, **times, **settings}
        if settings.get("security.protocol") == "PLAINTEXT":
            del merged["ssl.ca.location"]
        found.append((words, servers, merged))
    return found


def bad_ones_are_refused(kafka: KafkaCluster, clients: Sequence[OpenSender]) -> list[errors.SidecarError]:
    """The error of one record by each client; none of them is in the topic."""
    topic = new_topic(kafka)
    senders = [open_sender(topic) for open_sender in clients]
    for sender in senders:
        sender.send()
    found = []
    for sender in senders:
        error = sender.deliveries[0].exception(20)
        assert isinstance(error, errors.SidecarError) and error.persistence == 0
        found.append(error)
        sender.producer.close(0)
    assert not read_topic(kafka.bootstrap_servers, topic)
    return found


def test_se_04_bad_ones_fail_with_the_reason(
    secure_kafka: KafkaCluster, start_daemon: StartDaemon, tmp_path: Path
) -> None:
    """SE-04: records by a bad way in wait, and fail by the reason when their time is over. The worst of them for 10 s:
    few connections, few lines of the log."""
    kafka, opened = secure_kafka, Daemons(start_daemon)
    cases = bad_ones(kafka, tmp_path)
    clients = [opened(servers, settings) for _, servers, settings in cases]
    daemons = [(words, daemon) for (words, _, _), daemon in zip(cases, opened.started, strict=True)]
    for _, daemon in daemons:
        daemon.wait_published()
    costs = [
        Costs(kafka.relay(name), daemon)
        for (words, daemon) in daemons
        for name in (
            ["EXPIRED"] if words == "expired" else ["MUTUAL"] if words == "client certificate" else []
        )
    ]
    began_s = time.monotonic()
    for (words, _), error in zip(daemons, bad_ones_are_refused(kafka, clients), strict=True):
        assert words in str(error), (words, error)
    wait_until(lambda: seconds_since(began_s) > LASTS_S, "10 s")
    for cost in costs:
        cost.check()
        assert cost.connections > 1, "it tries again"


@pytest.mark.parametrize("kind", ["mismatch", "no password", "missing", "empty", "expired"])
def test_se_04_refused_at_start(
    secure_kafka: KafkaCluster, start_daemon: StartDaemon, tmp_path: Path, kind: str
) -> None:
    """SE-04: a key that is not the certificate's, an encrypted key without its password, a file that is missing or
    empty, a certificate of our own that has expired. The daemon does not start, and says file and reason."""
    ca = secure_kafka.authority
    mine, other = ca.issue("alice"), ca.issue("alice")
    chain, key = tmp_path / "chain.pem", tmp_path / "key.pem"
    chain.write_text(mine.certificate_pem)
    write_private(key, mine.key_pem())
    match kind:
        case "mismatch":
            write_private(key, other.key_pem())
        case "no password":
            write_private(key, mine.key_pem("a password"))
        case "missing":
            key.unlink()
        case "empty":
            chain.write_text("")
        case "expired":
            ca.issue("alice", begins_s=-200, ends_s=-100).write(key)
            chain = key
    settings = settings_for(secure_kafka, "MUTUAL")
    settings |= {"ssl.certificate.location": chain, "ssl.key.location": key}
    with pytest.raises(DaemonFailed) as failed:
        start_daemon(secure_kafka.servers("MUTUAL"), settings=settings)
    said = str(failed.value)
    assert "ended with" in said and "Traceback" not in said
    assert str(chain if kind in {"empty", "expired"} else key) in said
    assert "PRIVATE KEY" not in said


def test_se_04_everything_is_rotated_under_load(
    secure_kafka: KafkaCluster, start_daemon: StartDaemon, tmp_path: Path
) -> None:
    """500 records/s while the broker's certificate, its CA, the CA of clients and our own certificate are replaced, a
    half-written file in between, and connections are cut after each step: nothing lost, doubled or failed."""
    kafka, operator = secure_kafka, secure_kafka.security()
    relay, topic = kafka.relay("MUTUAL"), new_topic(kafka, partitions=2)
    old, new = kafka.authority, CertificateAuthority("the next CA")
    ca = tmp_path / "ca.pem"
    mine = tmp_path / "alice.pem"
    old.write(ca)
    old.issue("alice").write(mine)
    settings = {
        **settings_for(kafka, "MUTUAL"),
        "ssl.ca.location": ca,
        "ssl.certificate.location": mine,
        "ssl.key.location": mine,
    }
    daemon = start_daemon(kafka.servers("MUTUAL"), settings=settings)
    client = SteadyClient(daemon.run_dir, topic, "steady", burst=5, pause_s=0.01)

    def cut_and_flow() -> None:
        relay.cut()
        cut_s = time.monotonic()
        wait_until(
            lambda: client.last_delivered_s > cut_s + 0.2, "records after a cut", describe=daemon.log_tail
        )

    try:
        cut_and_flow()
        write_private(ca, old.certificate_pem + new.certificate_pem)
        operator.rotate("MUTUAL", new.issue("broker", hosts=LOCAL_HOSTS), trusted=(old, new))
        cut_and_flow()
        whole = new.issue("alice")
        mine.write_text(whole.key_pem()[:100])  # half-written: the old one stays
        cut_and_flow()
        whole.write(mine)
        cut_and_flow()
        write_private(ca, new.certificate_pem)
        operator.rotate("MUTUAL", new.issue("broker", hosts=LOCAL_HOSTS), trusted=(new,))
        cut_and_flow()
    finally:
        operator.rotate("MUTUAL", old.issue("broker", hosts=LOCAL_HOSTS), trusted=(old,))
        client.abandon() if client.raised else None
    relay.cut()
    old.write(ca)
    old.issue("alice").write(mine)
    client.finish()
    judge(kafka.bootstrap_servers, topic, [client])
    accounts_balance(daemon)
    said = [line for line in daemon.log_lines() if str(mine) in line and "is cut off" in line]
    assert 1 <= len(said) <= 2, "once by the worker, once by the controller if it connected meanwhile"


def test_handshakes_are_the_workers_alone(secure_kafka: KafkaCluster, start_daemon: StartDaemon) -> None:
    """50 processes that send at once through one daemon make no connection to Kafka: those there are are the
    controller's and the workers', whatever the number of processes."""
    kafka, workers = secure_kafka, 2
    relay, topic = kafka.relay("SASL_SSL"), new_topic(kafka, partitions=6)
    before = len(relay.accepted_s)
    settings = settings_for(kafka, "SASL_SSL", "SCRAM-SHA-256", "alice") | {"daemon.workers": workers}
    daemon = start_daemon(kafka.servers("SASL_SSL"), settings=settings)
    ledger = Ledger()
    enter(collect(start_clients(daemon.run_dir, topic, 50, 20)), ledger)
    for record in read_topic(kafka.bootstrap_servers, topic):
        ledger.read(RecordId.decode(record.value or b""), record.partition)
    ledger.check()
    # The controller comes in by the bootstrap address, and then asks the broker under its own name.
    assert len(relay.accepted_s) - before <= workers + 2
