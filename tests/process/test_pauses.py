"""Goal: a paused topic and a drained daemon hold records, through any death of the daemon, and lose none."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator

import pytest

from client_stub import Producer
from client_stub.errors import DeliveryTimeout
from sidecar.common.model import ExitStatus
from sidecar.tools.testing.daemon import SidecarDaemon, StartDaemon
from sidecar.tools.testing.fake_broker import FakeBroker
from sidecar.tools.testing.metrics import metric
from sidecar.tools.testing.waiting import wait_until

pytestmark = pytest.mark.process

COUNT = 50
LEDGER = ("delivered_total", "failed_total", "dead_lettered_total", "aborted_total")


@pytest.fixture
def kafka() -> Iterator[FakeBroker]:
    with FakeBroker({"orders": 1, "other": 1}) as kafka:
        yield kafka


def done(daemon: SidecarDaemon, *words: str) -> str:
    """Output of a command that ends well."""
    shown = daemon.command(*words)
    assert shown.returncode == ExitStatus.OK, shown.stderr + daemon.log_tail()
    return shown.stdout


def held(daemon: SidecarDaemon) -> int:
    return int(metric(daemon, "kafka_sidecar_records_held"))


def values(kafka: FakeBroker, topic: str) -> list[int]:
    return [int(record.value or b"") for record in kafka.records(topic)]


def test_a_paused_topic_waits_through_every_death(kafka: FakeBroker, start_daemon: StartDaemon) -> None:
    """kill -9 of its worker, a takeover, kill -9 of the daemon: nothing is sent before `resume`, and all of it then."""
    daemon = start_daemon(kafka.bootstrap_servers, settings={"daemon.workers": 1})
    with Producer(run_dir=str(daemon.run_dir)) as producer:
        assert "Paused: orders" in done(daemon, "pause", "orders")
        for place in (("status",), ("top", "-n", "1", "--interval", "0.1")):
            assert "paused by an operator since 20" in done(daemon, *place), "whether or not a record waits"
        assert list(daemon.info()["pauses"]["topics"]) == ["orders"]
        deliveries = [producer.send("orders", value=b"%d" % number) for number in range(COUNT)]
        producer.flush(20, until="accepted")

        def still_paused(sent: int) -> None:
            """A record of another topic goes through the worker that runs now; those of the paused one stay."""
            producer.send("other", value=b"%d" % sent).result(30)
            assert held(daemon) == COUNT
            assert values(kafka, "orders") == []

        still_paused(0)
        (worker,) = daemon.worker_pids()
        os.kill(worker, signal.SIGKILL)
        wait_until(lambda: daemon.worker_pids() not in ([worker], []), "another worker")
        still_paused(1)
        before = daemon.process
        assert before is not None
        daemon.spawn("--takeover")
        assert before.wait(30) == ExitStatus.OK
        daemon.wait_ready()
        still_paused(2)
        daemon.kill_all()
        daemon.start()
        still_paused(3)
        assert "Still stopped by an operator" in daemon.log_tail(100)

        assert "Records are accepted and sent." in done(daemon, "resume", "orders")
        assert [each.result(30).offset for each in deliveries] == list(range(COUNT))
        wrong = daemon.command("pause", "ordres")
        assert (wrong.returncode, "Nothing was sent to ordres here lately" in wrong.stderr) == (0, True)
        assert "lately" not in daemon.command("pause", "orders").stderr
        done(daemon, "resume")
        wait_until(
            lambda: "paused" not in done(daemon, "status"), "the worker's next report, without a held record"
        )
    assert values(kafka, "orders") == list(range(COUNT))
    assert kafka.duplicates("orders") == 0
    wait_until(lambda: held(daemon) == 0, "nothing to be held")
    fates = sum(metric(daemon, f"kafka_sidecar_records_{fate}") for fate in LEDGER)
    assert metric(daemon, "kafka_sidecar_records_accepted_total") == fates


def test_the_time_of_a_paused_record_runs(kafka: FakeBroker, start_daemon: StartDaemon) -> None:
    settings = {"linger.ms": 0, "request.timeout.ms": 500, "delivery.timeout.ms": 500}
    daemon = start_daemon(kafka.bootstrap_servers, settings=settings)
    done(daemon, "pause", "orders")
    with Producer(run_dir=str(daemon.run_dir)) as producer:
        with pytest.raises(DeliveryTimeout, match="an operator has paused the topic"):
            producer.send("orders", value=b"1").result(20)
        producer.send("other", value=b"1").result(20)
    assert values(kafka, "orders") == []


def test_a_stop_delivers_paused_records(kafka: FakeBroker, start_daemon: StartDaemon) -> None:
    daemon = start_daemon(kafka.bootstrap_servers)
    done(daemon, "pause", "orders")
    with Producer(run_dir=str(daemon.run_dir)) as producer:
        delivery = producer.send("orders", value=b"1")
        producer.flush(20, until="accepted")
        assert daemon.stop() == ExitStatus.OK, daemon.log_tail()
        assert delivery.result(20).offset == 0
        daemon.start()
        producer.send("orders", value=b"2").result(20)
    assert "A stop delivers all records" in daemon.log_path.read_text()


def test_a_drained_daemon_holds_its_clients(kafka: FakeBroker, start_daemon: StartDaemon) -> None:
    """Clients there and new ones wait, through the death of a worker too; `resume` lets all go on."""
    daemon = start_daemon(kafka.bootstrap_servers, settings={"daemon.workers": 1})
    with Producer(run_dir=str(daemon.run_dir)) as producer, Producer(run_dir=str(daemon.run_dir)) as later:
        producer.send("orders", value=b"0").result(20)
        assert "Drained: nothing is held" in done(daemon, "drain")
        shown = daemon.command("status")
        assert shown.returncode == ExitStatus.FAILED
        assert "drained and takes no records" in shown.stdout
        deliveries = [
            *(producer.send("orders", value=b"%d" % number) for number in range(1, COUNT)),
            later.send("other", value=b"0"),
        ]
        wait_until(lambda: metric(daemon, "kafka_sidecar_holds_total") >= 2, "both clients to be held")
        wait_until(
            lambda: "paused" in {each["reason"] for each in daemon.info().get("holds", ())},
            "it in daemon.json",
        )
        with pytest.raises(TimeoutError, match=r"kafka-sidecar drain"):
            deliveries[0].result(0.1)
        (worker,) = daemon.worker_pids()
        os.kill(worker, signal.SIGKILL)
        wait_until(lambda: daemon.worker_pids() not in ([worker], []), "another worker")
        wait_until(lambda: metric(daemon, "kafka_sidecar_holds_total") >= 4, "both clients to be held again")
        assert held(daemon) == 0
        assert values(kafka, "orders") == [0]
        done(daemon, "resume")
        for each in deliveries:
            each.result(30)
        done(daemon, "status")
    assert values(kafka, "orders") == list(range(COUNT))


def test_a_drain_that_cannot_end_says_so(kafka: FakeBroker, start_daemon: StartDaemon) -> None:
    daemon = start_daemon(kafka.bootstrap_servers)
    done(daemon, "pause", "orders")
    with Producer(run_dir=str(daemon.run_dir)) as producer:
        delivery = producer.send("orders", value=b"1")
        producer.flush(20, until="accepted")
        shown = daemon.command("drain", "--timeout", "2.5")
        assert shown.returncode == ExitStatus.TIMED_OUT
        soon, late = shown.stderr.splitlines()
        assert soon.startswith("1 record is still held. Topics are paused: orders. `kafka-sidecar explain`")
        assert late.startswith("1 record is held after 2.5 s. Topics are paused: orders.")
        done(daemon, "resume")
        assert delivery.result(20).offset == 0


def test_only_paused_topics_can_be_resumed(kafka: FakeBroker, start_daemon: StartDaemon) -> None:
    daemon = start_daemon(kafka.bootstrap_servers)
    shown = daemon.command("resume", "orders")
    assert (shown.returncode, shown.stderr) == (ExitStatus.FAILED, "Topic orders is not paused.\n")
