"""Scenarios: daemons to which failures happen, one after the other or several at once.

Scenarios run at the same time, for most of their time is waiting: a record counts as held after 5 s, a worker as silent
after 9. So a failure costs the suite a second or two, not its own daemon and its own wait.
"""

from __future__ import annotations

import contextlib
import os
import random
import signal
import socket
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from sidecar.tools.testing.daemon import SidecarDaemon
from sidecar.tools.testing.fake_broker import FakeBroker
from sidecar.tools.testing.metrics import http_get
from sidecar.tools.testing.waiting import wait_until
from tests.scenarios.test_clock import ShiftedClock

from .failures import (
    BROKER_DOWN,
    BROKER_HUNG,
    DAEMON_REPLACED,
    DISK_FULL_FOR_LETTERS,
    KAFKA_AWAY,
    LEADER_MISSING,
    MIN_ISR,
    POOL_BYTES,
    POOL_FULL_BY_CLIENT,
    POOL_FULL_BY_TOPIC,
    QUOTA,
    RECORD_TOO_LARGE,
    SLOW_CLIENT,
    TOPIC_FORBIDDEN,
    TOPIC_MISSING,
    WORKER_KILLED,
    WORKER_STOPPED,
    Failure,
    Harness,
    broker,
    wait_shown,
)
from .page_reader import PageReader

SEEN_S = 20.0
"""Promised are 10 s; twice as much for a machine that runs two suites."""
SETTINGS: Mapping[str, object] = {"daemon.workers": 1, "linger.ms": 1, "daemon.shutdown_timeout_s": 1}
TOPICS = {"orders": 2, "bulk": 2, "clicks": 2, "logs": 2}
HOUR_S = 3_600
STALL_S = 7.0
NAME = "broker-of-ours.test"
SMALL_DISK = "16k"


def on_fake_brokers(
    settings: Mapping[str, object],
    closing: contextlib.ExitStack,
    *,
    environment: Mapping[str, str] | None = None,
    prefix: Sequence[str] = (),
    advertised_host: str | None = None,
) -> Harness:
    kafka = closing.enter_context(FakeBroker(TOPICS, nodes=2, advertised_host=advertised_host))
    daemon = SidecarDaemon(
        kafka.bootstrap_servers, settings={**SETTINGS, **settings}, environment=environment, prefix=prefix
    )
    closing.callback(daemon.remove)
    daemon.start()
    return Harness(kafka, daemon, closing)


@dataclass(frozen=True)
class Scenario:
    """``steps``: failures that are caused and awaited together; between two steps ``heal`` ends the cause."""

    steps: tuple[tuple[Failure, ...], ...]
    settings: Mapping[str, object] = field(default_factory=dict)
    heal: Callable[[Harness], None] = lambda _: None
    open: Callable[[Mapping[str, object], contextlib.ExitStack], Harness] = on_fake_brokers

    def play(self, reader: PageReader) -> dict[str, float]:
        """Seconds until each of its failures was in all places. AssertionError for one that was not."""
        seen: dict[str, float] = {}
        with contextlib.ExitStack() as closing:
            harness = self.open(self.settings, closing)
            for position, failures in enumerate(self.steps):
                if position:
                    self.heal(harness)
                harness.begin(*failures)
                for failure in failures:
                    failure.cause(harness)
                seen |= wait_shown(harness, *failures, reader=reader, timeout_s=SEEN_S)
        return seen


def well_again(harness: Harness) -> None:
    """No rule is in force, and what was held has been delivered."""
    harness.kafka.clear_rules()
    wait_until(
        lambda: '"state": "running"' in http_get(harness.daemon, "/api/status"), "a daemon that is well"
    )


# ---- in a mount namespace of the daemon's own: needs root


def privately(*commands: str) -> list[str]:
    """Words before the daemon's: it sees what these commands mount, and nobody else does."""
    return ["unshare", "--mount", "sh", "-ec", "; ".join([*commands, 'exec "$@"']), "sh"]


def on_a_small_disk(settings: Mapping[str, object], closing: contextlib.ExitStack) -> Harness:
    """Dead letters go to a tmpfs of 16 KiB."""
    disk = closing.enter_context(tempfile.TemporaryDirectory(prefix="ks-disk-"))
    return on_fake_brokers(
        {**settings, "dead_letters.path": f"{disk}/letters"},
        closing,
        prefix=privately(f"mount -t tmpfs -o size={SMALL_DISK},mode=700 tmpfs {disk}"),
    )


def by_name(
    settings: Mapping[str, object], closing: contextlib.ExitStack, more: Sequence[str] = ()
) -> Harness:
    """The brokers have a name, in a hosts file that only the daemon reads."""
    folder = Path(closing.enter_context(tempfile.TemporaryDirectory(prefix="ks-hosts-")))
    hosts, services = folder / "hosts", folder / "nsswitch.conf"
    hosts.write_text(f"127.0.0.1 localhost {NAME}\n")
    services.write_text("hosts: files\n")
    mounts = [f"mount --bind {hosts} /etc/hosts", f"mount --bind {services} /etc/nsswitch.conf", *more]
    harness = on_fake_brokers(settings, closing, prefix=privately(*mounts), advertised_host=NAME)
    harness.hosts = hosts
    return harness


def silent_dns(closing: contextlib.ExitStack) -> list[str]:
    """Commands by which a daemon's name server is one that takes questions and answers none."""
    folder = Path(closing.enter_context(tempfile.TemporaryDirectory(prefix="ks-dns-")))
    mute = closing.enter_context(socket.socket(socket.AF_INET, socket.SOCK_DGRAM))
    host = (
        f"127.53.{random.randrange(256)}.{random.randrange(1, 255)}"  # each has its own: there is one port 53
    )
    mute.bind((host, 53))
    resolver, services = folder / "resolv.conf", folder / "nsswitch.conf"
    resolver.write_text(f"nameserver {host}\n")
    services.write_text("hosts: files dns\n")
    return [f"mount --bind {resolver} /etc/resolv.conf", f"mount --bind {services} /etc/nsswitch.conf"]


def by_silent_dns(settings: Mapping[str, object], closing: contextlib.ExitStack) -> Harness:
    return by_name(settings, closing, silent_dns(closing))


def name_vanishes(harness: Harness) -> None:
    """Connections that stand need no name: it is missed when the brokers close them."""
    producer = harness.producer()
    for partition in (0, 1):
        producer.send("orders", b"before", partition=partition).result(30)
    assert harness.hosts is not None
    harness.hosts.write_text("127.0.0.1 localhost\n")
    harness.kafka.disconnect()
    for partition in (0, 1):
        producer.send("orders", b"x", partition=partition)


DNS_GONE = Failure(
    "DNS gone while running",
    name_vanishes,
    rf"unreachable: (?s:.)*broker 1  down.*{NAME}.*[Nn]ame or service not known",
    lambda page: (
        page["accepts_records"]
        and not page["kafka_reachable"]
        and "ame or service not known" in broker(page, 1)["last_error"]
    ),
    ("kafka_reachable", "", lambda value: value == 0),
    rf"WARNING .*Broker 1 \({NAME}:\d+\) is down: .*[Nn]ame or service not known",
    r"Kafka is not reachable.*[Nn]ame or service not known",
)


NOT_RESOLVED = rf"the name {NAME} has not been resolved yet"
DNS_SILENT = Failure(
    "DNS silent while running",
    name_vanishes,
    rf"degraded: (?s:.)*broker 1  down for .*: {NOT_RESOLVED}",
    lambda page: page["state"] == "degraded" and NOT_RESOLVED in broker(page, 1)["last_error"],
    ("broker_up", 'broker="1"', lambda value: value == 0),
    rf"WARNING .*Broker 1 \({NAME}:\d+\) is down: {NOT_RESOLVED}; 1 record waits",
    NOT_RESOLVED,
)

# ---- other ways to begin


def with_a_clock(settings: Mapping[str, object], closing: contextlib.ExitStack) -> Harness:
    clock = ShiftedClock(Path(closing.enter_context(tempfile.TemporaryDirectory(prefix="ks-clock-"))))
    harness = on_fake_brokers(settings, closing, environment=clock.environment)
    harness.clock = clock
    return harness


def step_of_an_hour(harness: Harness) -> None:
    assert harness.clock is not None
    harness.clock.set(HOUR_S)


CLOCK_STEP = Failure(
    "clock step",
    step_of_an_hour,
    r"note .*wall clock has stepped forward by 3,600 s",
    lambda page: page["clock_steps"] == 1,
    ("clock_steps_total", "", lambda value: value == 1),
    r"WARNING .*wall clock has stepped forward by 3,600 s",
    r"wall clock has stepped forward by 3,600 s",
)


def stop_the_controller(harness: Harness) -> None:
    """While it stands it answers nobody: `status` reads files. Page, metric and log have it once it goes on."""
    pid = harness.daemon.info()["pid"]
    os.kill(pid, signal.SIGSTOP)
    stopped_s = time.monotonic()
    shown = harness.daemon.command("status")
    assert (shown.returncode, f"kill -CONT {pid}" in shown.stdout) == (1, True)
    assert harness.daemon.command("status", "--alive").returncode != 0
    wait_until(lambda: time.monotonic() - stopped_s >= STALL_S, "time to pass")
    os.kill(pid, signal.SIGCONT)


CONTROLLER_STOPPED = Failure(
    "controller stopped",
    stop_the_controller,
    r"note .*The controller did not run for \d+ s",
    lambda page: page["stalled_seconds"] >= STALL_S - 2,
    ("controller_stalled_seconds_total", "", lambda value: value >= STALL_S - 2),
    r"WARNING .*The controller did not run for \d+ s: the machine was stopped, or",
    r"\d\d:\d\d:\d\d.*: The controller did not run for \d+ s",
)

SCENARIOS = (
    Scenario(((WORKER_KILLED,), (WORKER_STOPPED,), (DAEMON_REPLACED,))),
    Scenario(((MIN_ISR,), (LEADER_MISSING,)), heal=well_again),
    Scenario(((CONTROLLER_STOPPED,),)),
    Scenario(((TOPIC_FORBIDDEN, RECORD_TOO_LARGE, TOPIC_MISSING), (QUOTA,))),
    Scenario(((BROKER_DOWN,), (KAFKA_AWAY,))),
    Scenario(((BROKER_HUNG,),)),
    Scenario(((POOL_FULL_BY_TOPIC,),), {"buffer.memory": POOL_BYTES}),
    Scenario(((POOL_FULL_BY_CLIENT,),), {"buffer.memory": POOL_BYTES}),
    Scenario(((SLOW_CLIENT,),)),
    Scenario(((CLOCK_STEP,),), open=with_a_clock),
    Scenario(((DISK_FULL_FOR_LETTERS,),), {"max.block.ms": 1_000}, open=on_a_small_disk),
    Scenario(((DNS_GONE,),), open=by_name),
    Scenario(((DNS_SILENT,),), open=by_silent_dns),
)
"""The longest first."""
OF_ROOT = (DISK_FULL_FOR_LETTERS, DNS_GONE, DNS_SILENT)
"""Only root may mount."""
