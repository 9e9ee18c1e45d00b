"""Connections: SN-11 and BF-04 on the fake broker, ER-05 without any."""

from __future__ import annotations

import os
import signal
from urllib.error import HTTPError

import pytest

from client_stub import Producer, errors
from sidecar.tools.testing.daemon import StartDaemon
from sidecar.tools.testing.fake_broker import FakeBroker
from sidecar.tools.testing.fault_rules import ALWAYS, on
from sidecar.tools.testing.kafka_frames import Api
from sidecar.tools.testing.metrics import http_get
from sidecar.tools.testing.waiting import wait_until

from .harness import FAST, Harness

pytestmark = [pytest.mark.process]

CORRUPT_MESSAGE, UNSUPPORTED_VERSION = 2, 35
SETTINGS = {
    "connections.max.idle.ms": 1_000,
    "socket.connection.setup.timeout.ms": 700,
    "socket.connection.setup.timeout.max.ms": 1_000,
}


def test_sn_11_idle_connections(harness: Harness) -> None:
    """SN-11: idle past connections.max.idle.ms, the connection closes; the next record opens one, no error shown."""
    topic, sender = harness.primed()
    with sender:
        (first,) = harness.produced(topic)
        wait_until(lambda: not harness.kafka.connections(first.node), "the idle connection to close")
        sender.send()
        assert sender.offsets() == [0, 1]
        harness.balance(sender)
    assert harness.produced(topic)[1].connection != first.connection
    assert len(harness.produced(topic)) == 2


def test_sn_11_the_broker_closes_idle_connections(harness: Harness) -> None:
    """SN-11: the same when it is the broker that closes them."""
    _topic, sender = harness.primed()
    with sender:
        for number in range(1, 6):
            harness.kafka.disconnect()
            sender.send()
            assert sender.offsets() == list(range(number + 1))
        harness.balance(sender)


def test_sn_11_a_corrupt_batch_goes_again(harness: Harness) -> None:
    """SN-11: CORRUPT_MESSAGE once: exactly two requests."""
    topic, sender = harness.primed()
    with sender:
        harness.kafka.add(on(Api.PRODUCE, topic=topic).refuse(CORRUPT_MESSAGE))
        sender.send()
        assert sender.offsets() == [0, 1]
        harness.balance(sender)
    assert len(harness.produced(topic)) == 3


def test_sn_11_version_negotiation_ends(harness: Harness) -> None:
    """SN-11: UNSUPPORTED_VERSION to every ApiVersions, with a hint that is no help. Each connection asks twice; then
    come an error and the reconnect backoff. When the broker comes to its senses records flow."""
    _topic, sender = harness.primed()
    with sender:
        stubborn = harness.kafka.add(on(Api.API_VERSIONS, times=ALWAYS).refuse(UNSUPPORTED_VERSION))
        before = len(harness.kafka.requests(Api.API_VERSIONS))
        harness.kafka.disconnect()
        sender.send()
        stubborn.wait(8)
        assert not sender.deliveries[-1].done()
        stubborn.remove()
        assert sender.offsets() == [0, 1]
        harness.balance(sender)
    asked: dict[int, int] = {}
    for request in harness.kafka.requests(Api.API_VERSIONS)[before:]:
        asked[request.connection] = asked.get(request.connection, 0) + 1
    assert max(asked.values()) <= 2
    assert len(asked) >= 4


def test_bf_04_a_broker_restarts_on_its_port(harness: Harness) -> None:
    """BF-04: the broker goes away with records under way and is back on its port."""
    topic, sender = harness.primed()
    node = harness.produced(topic)[0].node
    with sender:
        for number in range(3):
            held = harness.kafka.add(on(Api.PRODUCE, topic=topic).hold_answer())
            sender.send()
            held.wait()
            harness.kafka.stop_listening(node)
            held.release()
            sender.send()
            harness.kafka.listen_again(node)
            assert sender.offsets() == list(range(3 + 2 * number))
        harness.balance(sender)


def test_bf_04_metadata_still_names_the_dead_leader(harness: Harness) -> None:
    """BF-04: the leader is dead; metadata names it twice more, then another one: that does not end the retries."""
    topic, sender = harness.primed()
    node = harness.produced(topic)[0].node
    other = 3 - node
    with sender:
        harness.kafka.stop_listening(node)
        asked = len(harness.kafka.requests(Api.METADATA))
        sender.send()
        wait_until(lambda: len(harness.kafka.requests(Api.METADATA)) >= asked + 2, "two stale answers")
        harness.kafka.move_leader(topic, 0, other)
        assert sender.offsets() == [0, 1]
        harness.kafka.listen_again(node)
        harness.balance(sender)
    assert harness.produced(topic)[-1].node == other


def test_bf_04_a_mute_port_is_given_up_at_the_setup_timeout(harness: Harness) -> None:
    """BF-04: a port that accepts and never answers is given up at the setup timeout, long before request.timeout.ms
    (30 s); records for the other broker go on."""
    mute, alive = harness.new_topic(), harness.new_topic()
    harness.kafka.move_leader(mute, 0, 1)
    harness.kafka.move_leader(alive, 0, 2)
    with harness.sender(mute) as stuck, harness.sender(alive) as other:
        stuck.send()
        stuck.offsets()
        harness.kafka.stop_reading(1)
        harness.kafka.disconnect(1)
        stuck.send()
        connections: set[int] = set()

        def came_back() -> bool:
            other.send()
            other.offsets()
            connections.update(harness.kafka.connections(1))
            return len(connections) >= 3

        wait_until(came_back, "the mute port to be given up twice", timeout_s=15)
        assert not stuck.deliveries[-1].done()
        harness.kafka.read_again(1)
        assert stuck.offsets() == [0, 1]
        harness.balance(stuck, other)


def test_er_05_no_broker_at_all(start_daemon: StartDaemon) -> None:
    """ER-05: closed ports. The daemon stays up and says so; a send fails by timeout after max.block.ms. When a broker
    appears on one of the ports, records flow with no restart."""
    with FakeBroker({"t": 1}) as kafka:
        kafka.stop_listening(1)
        daemon = start_daemon(
            f"127.0.0.1:1,{kafka.address(1)}", wait=False, settings={**FAST, "max.block.ms": 1_500}
        )
        daemon.wait_published()

        def is_unhealthy() -> bool:
            try:
                http_get(daemon, "/healthz")
            except HTTPError as error:
                return error.code == 503
            except (OSError, ValueError):
                return False
            return False

        wait_until(is_unhealthy, "503 of /healthz")
        shown = daemon.command("status")
        assert shown.returncode == 1
        assert "Kafka" in shown.stdout + shown.stderr
        with Producer(run_dir=str(daemon.run_dir), client_name="early", max_block_ms=1_500) as producer:
            try:
                error = producer.send("t", b"x").exception(15)
            except errors.SidecarError as raised:
                error = raised
            assert isinstance(error, (errors.DeliveryTimeout, errors.DaemonUnreachable)), error
            assert daemon.process is not None
            assert daemon.process.poll() is None
            kafka.listen_again(1)
            daemon.wait_ready()
            assert producer.send("t", b"y").result(15).partition == 0


def test_a_new_worker_sits_out_its_backoff_while_the_broker_is_away(harness: Harness) -> None:
    """A worker that has no producer id yet can drain nothing, so nothing but its wish for one asks for a connection."""
    _topic, sender = harness.primed()
    with sender:
        away = harness.kafka.add(on(Api.API_VERSIONS, times=ALWAYS).cut())
        harness.kafka.disconnect()
        (pid,) = harness.daemon.worker_pids()
        os.kill(pid, signal.SIGKILL)
        wait_until(
            lambda: all(
                each["state"] == "ready" and each["pid"] != pid for each in harness.daemon.info()["workers"]
            ),
            "another worker",
        )
        accepted, tried = harness.accepted(), len(harness.kafka.requests(Api.API_VERSIONS))
        sender.send()
        wait_until(lambda: harness.accepted() > accepted, "the new worker to accept a record")
        wait_until(
            lambda: len(harness.kafka.requests(Api.API_VERSIONS)) >= tried + 2, "the broker to be tried again"
        )
        away.remove()
        assert sender.outcomes()[-1].error is None
        harness.balance(sender)
