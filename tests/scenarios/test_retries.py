"""How often a batch is tried: SN-01, ER-06, ID-13, SN-10 with daemons of their own settings."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from client_stub import errors
from sidecar.tools.testing.daemon import SidecarDaemon, StartDaemon
from sidecar.tools.testing.fake_broker import FakeBroker
from sidecar.tools.testing.fault_rules import on
from sidecar.tools.testing.kafka_frames import Api
from sidecar.tools.testing.waiting import wait_until

from .harness import FAST, Harness, pool_is_whole

pytestmark = [pytest.mark.process]

LEADER_NOT_AVAILABLE, REQUEST_TIMED_OUT, STORAGE_ERROR = 5, 7, 56
NOT_ENOUGH_REPLICAS, NOT_ENOUGH_REPLICAS_AFTER_APPEND = 19, 20

HarnessWith = Callable[..., Harness]


@pytest.fixture(scope="module")
def kafka() -> Iterator[FakeBroker]:
    with FakeBroker(nodes=2) as broker:
        yield broker


def ends_whole(harness: Harness) -> None:
    """Pages taken equal pages given back."""
    harness.kafka.clear_rules()
    with harness.sender(harness.new_topic()) as probe:
        pool_is_whole(harness.daemon, probe)


@pytest.fixture(scope="module")
def plain(kafka: FakeBroker) -> Iterator[Harness]:
    """Not idempotent, one retry."""
    settings = {**FAST, "retries": 1, "enable.idempotence": "false"}
    with SidecarDaemon(kafka.bootstrap_servers, settings=settings) as daemon:
        made = Harness(kafka, daemon)
        yield made
        ends_whole(made)


@pytest.fixture(scope="module")
def no_retries(kafka: FakeBroker) -> Iterator[Harness]:
    with SidecarDaemon(kafka.bootstrap_servers, settings={**FAST, "retries": 0}) as daemon:
        made = Harness(kafka, daemon)
        yield made
        ends_whole(made)


@pytest.fixture
def harness_with(kafka: FakeBroker, start_daemon: StartDaemon) -> Iterator[HarnessWith]:
    made: list[Harness] = []

    def make(**settings: object) -> Harness:
        named = {name.replace("_", "."): value for name, value in settings.items()}
        made.append(Harness(kafka, start_daemon(kafka.bootstrap_servers, settings={**FAST, **named})))
        return made[-1]

    yield make
    for harness in made:
        ends_whole(harness)


def test_sn_01_one_cut_is_survived(plain: Harness) -> None:
    """SN-01: retries 1, the connection is cut after the request once: delivered by the second."""
    topic, sender = plain.primed()
    with sender:
        plain.kafka.add(on(Api.PRODUCE, topic=topic).cut())
        sender.send()
        assert sender.offsets() == [0, 1]
        plain.balance(sender, idempotent=False)


def test_sn_01_two_cuts_are_not(plain: Harness) -> None:
    """SN-01: cut twice: the network's error to the caller, possibly persisted, and no third request."""
    topic, sender = plain.primed()
    with sender:
        plain.kafka.add(on(Api.PRODUCE, topic=topic, times=2).cut())
        sender.send()
        error = sender.outcomes()[1].error
        assert error is not None
        assert (error.name, error.persistence) == ("NETWORK_EXCEPTION", 1)
        sender.send()
        assert sender.outcomes()[2].offset == 1
        plain.balance(sender, idempotent=False)
    assert [request.fate for request in plain.produced(topic)] == ["answered", "cut", "cut", "answered"]


def test_sn_01_storage_error(no_retries: Harness, plain: Harness) -> None:
    """SN-01: KAFKA_STORAGE_ERROR surfaces with retries 0 and is absorbed with some."""
    for harness, expected in ((no_retries, "KAFKA_STORAGE_ERROR"), (plain, None)):
        topic, sender = harness.primed()
        with sender:
            harness.kafka.add(on(Api.PRODUCE, topic=topic).refuse(STORAGE_ERROR))
            sender.send()
            error = sender.outcomes()[1].error
            assert (error.name if error else None) == expected


@pytest.mark.parametrize(
    ("code", "kind", "persistence"),
    [
        (NOT_ENOUGH_REPLICAS, errors.NotEnoughReplicas, 0),
        (NOT_ENOUGH_REPLICAS_AFTER_APPEND, errors.NotEnoughReplicasAfterAppend, 1),
        (REQUEST_TIMED_OUT, errors.RequestTimedOut, 1),
    ],
)
@pytest.mark.parametrize("text", ["two of three replicas are away", None])
def test_er_06_the_brokers_words(
    no_retries: Harness, code: int, kind: type[Exception], persistence: int, text: str | None
) -> None:
    """ER-06: the error of its kind, with the broker's own words where it has some."""
    topic, sender = no_retries.primed()
    with sender:
        no_retries.kafka.add(on(Api.PRODUCE, topic=topic).refuse(code, text=text))
        sender.send()
        error = sender.outcomes()[1].error
        assert isinstance(error, kind)
        assert int(error.persistence) == persistence
        assert str(error) == text if text else len(str(error)) > 10
        no_retries.balance(sender, idempotent=False)


def test_er_06_absorbed_by_retries(harness_with: HarnessWith) -> None:
    """ER-06: with the default retries NOT_ENOUGH_REPLICAS costs time only."""
    harness = harness_with()
    topic, sender = harness.primed()
    with sender:
        harness.kafka.add(
            on(Api.PRODUCE, topic=topic, times=5).refuse(NOT_ENOUGH_REPLICAS, NOT_ENOUGH_REPLICAS)
        )
        sender.send()
        assert sender.offsets() == [0, 1]
        harness.balance(sender)


def test_id_13_unknown_fate_is_not_given_up(harness_with: HarnessWith) -> None:
    """ID-13: retries 1, but the broker may have the batch: it is asked until it is known; a refused one is given up."""
    harness = harness_with(retries=1)
    topic, sender = harness.primed()
    with sender:
        harness.kafka.add(
            on(Api.PRODUCE, topic=topic, times=3).answer_with(
                NOT_ENOUGH_REPLICAS_AFTER_APPEND, REQUEST_TIMED_OUT
            )
        )
        sender.send()
        assert sender.offsets() == [0, 1]
        harness.kafka.add(on(Api.PRODUCE, topic=topic, times=2).refuse(LEADER_NOT_AVAILABLE))
        sender.send()
        error = sender.outcomes()[2].error
        assert error is not None
        assert (error.name, error.persistence) == ("LEADER_NOT_AVAILABLE", 0)
        harness.balance(sender)
    assert harness.kafka.duplicates(topic) == 3


@pytest.mark.parametrize("acks", ["0", "1", "all"])
def test_sn_10_acks(harness_with: HarnessWith, acks: str) -> None:
    """SN-10: 100 records in order whatever acks says; acks=0 waits for nothing and tells no offset. A record above
    the broker's limit raises nothing with acks=0, and what comes after it is not harmed."""
    harness = harness_with(acks=acks)
    topic, sender = harness.primed()
    with sender:
        for _ in range(100):
            sender.send()
        offsets = [outcome.offset for outcome in sender.outcomes()]
        assert offsets == ([-1] * 101 if acks == "0" else list(range(101)))
        wait_until(lambda: len(harness.kafka.records(topic)) == 101, "what nobody waited for")
        harness.balance(sender)
        harness.kafka.message_bytes_max = 5_000
        try:
            sender.send(size=10_000)
            error = sender.outcomes()[-1].error
            if acks == "0":
                assert error is None
            else:
                assert isinstance(error, errors.RecordTooLarge)
            harness.wait_produced(topic, len(harness.produced(topic)))
            sender.send()
            assert sender.outcomes()[-1].error is None
        finally:
            sender.producer.flush(10)
            harness.kafka.message_bytes_max = 1_048_588
    values = [
        int((record.value or b"").split(b"|")[0].split(b"/")[1]) for record in harness.kafka.records(topic)
    ]
    assert values[:101] == list(range(101))


@pytest.mark.rule("M7")
def test_with_acks_0_a_closed_connection_is_a_reason_to_look_for_the_leader(
    harness_with: HarnessWith,
) -> None:
    """The old leader is alive and closes the connection: one record may be lost by that, those after it are not."""
    harness = harness_with(acks="0")
    topic, sender = harness.primed()
    with sender:
        wait_until(lambda: len(harness.kafka.records(topic)) == 1, "the first record")
        harness.kafka.move_leader(topic, 0, 2)
        asked = len(harness.kafka.requests(Api.METADATA))
        sender.send()
        sender.outcomes()
        wait_until(lambda: len(harness.kafka.requests(Api.METADATA)) > asked, "metadata to be asked for")
        wait_until(
            lambda: [sender.send().exception(10), len(harness.kafka.records(topic)) > 1][1],
            "a record at the new leader",
        )
        harness.check_books()
