"""A broker that advertises a name which this host cannot resolve: what is to be corrected is said in every place."""

from __future__ import annotations

import pytest

from client_stub import Producer
from sidecar.tools.testing.daemon import StartDaemon
from sidecar.tools.testing.fake_broker import FakeBroker
from sidecar.tools.testing.waiting import wait_until

pytestmark = pytest.mark.process
NAME = "kafka-1.of-a-container.invalid"
CURE = "correct advertised.listeners of broker 1, from which it comes, or this host's DNS"


def test_the_cure_is_in_status_explain_doctor_log_and_result(start_daemon: StartDaemon) -> None:
    """It was "correct bootstrap.servers", which is right, or "Kafka has not acknowledged it"."""
    with FakeBroker({"orders": 1}, advertised_host=NAME) as kafka:
        daemon = start_daemon(
            kafka.bootstrap_servers.replace(NAME, "127.0.0.1"),
            settings={"daemon.workers": 1, "daemon.shutdown_timeout_s": 1},
        )
        with Producer(daemon.run_dir) as producer:
            delivery = producer.send("orders", b"x")
            wait_until(lambda: CURE in daemon.log_tail(), "the line of the log")
            with pytest.raises(TimeoutError, match="has no outcome after 2") as late:
                delivery.result(2)
            assert CURE in str(late.value)
            with pytest.raises(TimeoutError) as late:
                producer.flush(2)
            assert CURE in str(late.value)
            for command in ("status", "explain", "doctor"):
                assert CURE in daemon.command(command).stdout, command
            assert "bootstrap.servers" not in daemon.command("status").stdout
            producer.close(0)
