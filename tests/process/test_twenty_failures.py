"""Goal: what fails is seen: each failure shows its cause in `status`, on the page, in `top`, in a metric and the log.

Method: daemons on fake brokers over real sockets, or on a real Kafka. A failure is caused, and all places are read
until they show it; the page in a real Chromium where there is one, and else its data alone. Those on fake brokers are
scenarios (failure_scenarios.py), which run at the same time. `-s` prints how long each took.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import pytest

from client_stub import Producer
from sidecar.tools.testing.certificates import LOCAL_HOSTS
from sidecar.tools.testing.daemon import SidecarDaemon
from sidecar.tools.testing.fake_broker import FakeBroker
from sidecar.tools.testing.kafka_cluster import KafkaCluster
from sidecar.tools.testing.kafka_listeners import Listener
from tests.tools import ROOT_USER, needs

from .failure_scenarios import OF_ROOT, SCENARIOS, SEEN_S, SETTINGS, Scenario, privately, silent_dns
from .failures import Failure, Harness, broker, wait_shown
from .page_reader import PageReader

pytestmark = [pytest.mark.process]

AT_ONCE = 4
WEEK_S = 7 * 86_400.0
Played = Callable[[Scenario], dict[str, float]]


def each_failure() -> Iterator[object]:
    for scenario in SCENARIOS:
        for failures in scenario.steps:
            for each in failures:
                needs_root = [needs(ROOT_USER)] if each in OF_ROOT else []
                yield pytest.param(scenario, each.name, marks=needs_root, id=each.name.replace(" ", "-"))


@pytest.fixture(scope="module")
def reader() -> Iterator[PageReader]:
    with PageReader() as reader:
        yield reader


@pytest.fixture(scope="module")
def played(request: pytest.FixtureRequest, reader: PageReader) -> Iterator[Played]:
    """All scenarios whose failures were asked for begin with the first test; each test waits for its own."""
    wanted = [
        item.callspec.params["scenario"]
        for item in request.session.items
        if isinstance(item, pytest.Function)
        and hasattr(item, "callspec")
        and "scenario" in item.callspec.params
    ]
    with ThreadPoolExecutor(AT_ONCE) as threads:
        playing: dict[int, Future[dict[str, float]]] = {
            id(scenario): threads.submit(scenario.play, reader)
            for scenario in SCENARIOS
            if scenario in wanted
        }
        yield lambda scenario: playing[id(scenario)].result()


@pytest.mark.parametrize(("scenario", "name"), list(each_failure()))
def test_each_failure_is_seen_in_all_places(scenario: Scenario, name: str, played: Played) -> None:
    print(f"\n{name}: {played(scenario)[name]:.1f} s")


def test_a_name_that_no_dns_knows_is_seen(reader: PageReader) -> None:
    """From the start: the daemon takes records, and says why it cannot deliver them."""
    failure = Failure(
        "DNS gone",
        lambda _: None,
        r"unreachable: .*broker-of-nobody\.invalid:9092.*(ame|known)",
        lambda page: page["accepts_records"] and "broker-of-nobody" in page["sentence"],
        ("kafka_reachable", "", lambda value: value == 0),
        r"WARNING .*Kafka is not reachable .*broker-of-nobody\.invalid",
        r"Kafka is not reachable .*broker-of-nobody\.invalid",
    )
    with contextlib.ExitStack() as closing, FakeBroker() as nobody:
        daemon = SidecarDaemon("broker-of-nobody.invalid:9092", settings=SETTINGS)
        closing.callback(daemon.remove)
        daemon.spawn()
        harness = Harness(nobody, daemon, closing)
        daemon.wait_published()
        seen = wait_shown(harness, failure, reader=reader, timeout_s=SEEN_S)
        print(f"\n{failure.name}: {seen[failure.name]:.1f} s")
        assert daemon.command("status", "--alive").returncode == 0, "a restart would not help"


@needs(ROOT_USER)
def test_a_name_server_that_says_nothing_is_seen_from_the_start(reader: PageReader) -> None:
    failure = Failure(
        "DNS silent",
        lambda _: None,
        r"unreachable: .*broker-of-nobody\.example:9092.*[Tt]he name .* (has not been|cannot be) resolved",
        lambda page: page["accepts_records"] and " resolved" in page["sentence"],
        ("kafka_reachable", "", lambda value: value == 0),
        r"WARNING .*Kafka is not reachable .*the name broker-of-nobody\.example has not been resolved yet",
        r"[Tt]he name broker-of-nobody\.example (has not been|cannot be) resolved",
    )
    with contextlib.ExitStack() as closing, FakeBroker() as nobody:
        prefix = privately(*silent_dns(closing))
        daemon = SidecarDaemon("broker-of-nobody.example:9092", settings=SETTINGS, prefix=prefix)
        closing.callback(daemon.remove)
        daemon.spawn()
        daemon.wait_published()
        seen = wait_shown(Harness(nobody, daemon, closing), failure, reader=reader, timeout_s=SEEN_S)
        print(f"\n{failure.name}: {seen[failure.name]:.1f} s")


@pytest.fixture(scope="module")
def kafka() -> Iterator[KafkaCluster]:
    """One broker for the tests that need a real one: TLS as well, and it is killed and comes back."""
    with KafkaCluster(light=True, topics={"orders": 1}, listeners=[Listener("SSL")]) as cluster:
        yield cluster


@pytest.mark.kafka
def test_a_certificate_that_expires_in_seven_days_is_seen(
    kafka: KafkaCluster, reader: PageReader, tmp_path: Path
) -> None:
    failure = Failure(
        "certificate",
        lambda _: None,
        r"note .*Our certificate .* expires in 7 days: renew it",
        lambda page: (
            any("Our certificate" in each for each in page["notices"]) and page["state"] == "running"
        ),
        (
            "certificate_ends_timestamp_seconds",
            "Our",
            lambda value: 6.9 < (value - time.time()) / 86_400 < 7.1,
        ),
        r"WARNING .*Our certificate .* expires in 7 days: renew it",
        r"Our certificate .* expires in 7 days: renew it",
    )
    with contextlib.ExitStack() as closing:
        mine = kafka.authority.issue("daemon", hosts=LOCAL_HOSTS, ends_s=WEEK_S + 60).write(
            tmp_path / "me.pem"
        )
        settings = kafka.client_settings("SSL") | {
            "ssl.certificate.location": str(mine),
            "ssl.key.location": str(mine),
        }
        daemon = SidecarDaemon(kafka.servers("SSL"), settings={**SETTINGS, **settings})
        closing.callback(daemon.remove)
        daemon.start()
        seen = wait_shown(Harness(FakeBroker(), daemon, closing), failure, reader=reader, timeout_s=SEEN_S)
        print(f"\n{failure.name}: {seen[failure.name]:.1f} s")


@pytest.mark.kafka
def test_a_restart_of_kafka_is_seen_when_it_goes_and_when_it_is_back(
    kafka: KafkaCluster, reader: PageReader
) -> None:
    away = Failure(
        "Kafka down",
        lambda _: None,
        r"unreachable: (?s:.)*broker 1  down",
        lambda page: broker(page, 1)["state"] == "down" and page["accepts_records"],
        ("broker_up", 'broker="1"', lambda value: value == 0),
        r"WARNING .*Broker 1 \(.*\) is down",
        r"Kafka is not reachable",
    )
    back = Failure(
        "Kafka back",
        lambda _: None,
        r"^running for",
        lambda page: broker(page, 1)["state"] == "up" and page["state"] == "running",
        ("broker_up", 'broker="1"', lambda value: value == 1),
        r"Broker 1 \([^)]*\) is down(?s:.)* WARNING .*: Broker 1 \([^)]*\) is up again after (?:\d+ min )?\d+ s\.$",
        r"Everything runs|everything runs",
    )
    with contextlib.ExitStack() as closing:
        daemon = SidecarDaemon(kafka.bootstrap_servers, settings=SETTINGS)
        closing.callback(daemon.remove)
        daemon.start()
        harness = Harness(FakeBroker(), daemon, closing)
        with Producer(daemon.run_dir, client_name="web") as producer:
            producer.send("orders", b"before").result(30)
            harness.begin(away)
            kafka.kill_node(0)
            delivery = producer.send("orders", b"x")
            seen = wait_shown(harness, away, reader=reader, timeout_s=SEEN_S)
            kafka.restart_node(0)
            seen |= wait_shown(harness, back, reader=reader, timeout_s=SEEN_S)
            print("".join(f"\n{name}: {seconds:.1f} s" for name, seconds in seen.items()))
            assert delivery.result(30).offset >= 0
