"""The same scenarios with Apache Kafka's own Java producer: what it does is what we are held to.

Each row runs the very function that the daemon is tested with, in a harness whose producer is Java's
(``java_harness.py``), on a fake broker of its own. Where Java departs from what the function asks, the row says
how (``departs``, what the failed assertion says) and docs/scenarios.md says why we do otherwise.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

import pytest

from sidecar.tools.testing.fake_broker import FakeBroker
from sidecar.tools.testing.fault_proxy import FaultProxy
from sidecar.tools.testing.fault_rules import ALWAYS, on
from sidecar.tools.testing.kafka_cluster import KafkaCluster
from sidecar.tools.testing.kafka_frames import Api
from sidecar.tools.testing.kafka_topics import NewTopic

from . import (
    test_aging_metadata,
    test_authorization,
    test_connections,
    test_deadlines,
    test_drain,
    test_idempotence,
    test_memory,
    test_metadata,
    test_order,
    test_real_kafka,
    test_retries,
    test_slow_brokers,
)
from .java_harness import JavaHarness, JavaRealHarness
from .java_producers import JavaProducers

pytestmark = [pytest.mark.process, pytest.mark.kafka]

PLAIN = {"retries": 1, "enable.idempotence": "false"}


class Row(NamedTuple):
    """``run`` is a scenario; its module's SETTINGS hold, and ``settings`` besides."""

    run: Callable[..., None]
    arguments: Mapping[str, Any] = {}
    settings: Mapping[str, object] = {}
    departs: str | None = None

    @property
    def name(self) -> str:
        said = "-".join(str(value) for value in self.arguments.values())
        return f"{self.run.__name__.removeprefix('test_')}{said and f'[{said}]'}"


def sn_01_storage_error(harness: JavaHarness) -> None:
    test_retries.test_sn_01_storage_error(harness.twin({"retries": 0}), harness.twin(PLAIN))


def id_13_unknown_fate(harness: JavaHarness) -> None:
    test_retries.test_id_13_unknown_fate_is_not_given_up(lambda retries: harness.twin({"retries": retries}))


def sn_10_acks(harness: JavaHarness, acks: str) -> None:
    test_retries.test_sn_10_acks(lambda acks: harness.twin({"acks": acks}), acks)


def id_04_the_very_first_is_refused(harness: JavaHarness) -> None:
    """ID-04 on a partition that does not know the producer yet: it takes those behind the first."""
    topic = harness.new_topic()
    with harness.sender(topic) as sender:
        first = harness.kafka.add(
            on(Api.PRODUCE, topic=topic).refuse(test_idempotence.NOT_LEADER).hold_answer()
        )
        harness.send_apart(sender, 3)
        first.release()
        assert sender.offsets() == [0, 1, 2]


def fc_07_close_at_once(harness: JavaHarness) -> None:
    """FC-07: some in flight, many behind them, no broker answers: close(0) tells each once."""
    topic, sender = harness.primed()
    harness.kafka.add(on(Api.PRODUCE, times=ALWAYS).hold())
    for _ in range(200):
        sender.send(size=400)
    harness.wait_produced(topic, 2)
    harness.close(0)
    told = sender.outcomes()
    assert [outcome.error is None for outcome in told] == [True] + [False] * 200
    assert sender.told == dict.fromkeys(range(201), 1)
    assert {str(outcome.error) for outcome in told[1:]} <= {
        "Producer is closed forcefully.",
        "Producer closed while send in progress",
        "Cannot perform operation after producer has been closed",
    }


def er_04_refused_by_send(harness: JavaHarness) -> None:
    """ER-04: partition -1 is refused at once, 99 after max.block.ms; neither is sent."""
    topic, sender = harness.primed()
    with sender:
        for partition, words in (
            (-1, "Invalid partition: -1"),
            (99, "Partition 99 of topic .* is not present"),
        ):
            error = sender.producer.send(topic, b"x", partition=partition).exception(10)
            assert re.search(words, str(error))
        sender.send()
        assert sender.offsets() == [0, 1]
    assert len(harness.produced(topic)) == 2


ROWS = [
    Row(test_idempotence.test_id_02_sequences_have_no_holes),
    *(Row(test_idempotence.test_id_03_lost_answers, {"lost": lost}) for lost in (1, 5)),
    Row(test_idempotence.test_id_04_a_refused_first_batch_holds_later_ones),
    Row(
        id_04_the_very_first_is_refused,
        settings={"delivery.timeout.ms": 1_500, "request.timeout.ms": 1_400},
        departs=r"not delivered: Expiring 1 record",
    ),
    Row(test_idempotence.test_sn_04_the_retry_comes_next),
    Row(test_idempotence.test_id_05_second_ok_first_unknown),
    Row(test_idempotence.test_id_05_duplicate_sequence_is_success),
    Row(test_idempotence.test_id_06_a_gap_takes_one_new_epoch),
    Row(test_idempotence.test_id_07_unknown_producer_id_start_unknown),
    Row(test_idempotence.test_id_07_deleted_records_and_a_forgotten_id),
    Row(test_idempotence.test_id_08_the_freed_sequence_is_used_again),
    Row(test_idempotence.test_id_10_epochs_run_out, departs="a batch went out without an identity"),
    Row(test_idempotence.test_id_13_not_allowed_then_granted),
    Row(test_idempotence.test_sn_05_partitions_of_one_request_have_their_own_fate),
    Row(
        test_idempotence.test_sn_05_records_that_the_broker_refuses,
        departs="it was part of a batch which had one more more invalid records",
    ),
    Row(test_deadlines.test_sn_06_never_sent),
    Row(test_deadlines.test_sn_06_in_flight_then_answered_late),
    # Seldom on the wire, where the deadline would find it with the broker's last error for its own.
    Row(
        test_deadlines.test_sn_06_in_backoff, settings={"retry.backoff.ms": 400, "retry.backoff.max.ms": 400}
    ),
    Row(test_deadlines.test_sn_07_slow_answers_are_possibly_persisted),
    Row(test_deadlines.test_id_09_later_batch_succeeds),
    Row(test_deadlines.test_id_09_refused_to_its_end),
    Row(test_deadlines.test_id_09_in_doubt_with_nothing_after_it),
    Row(test_deadlines.test_id_09_a_batch_that_never_left),
    Row(test_drain.test_ac_05_drain_continues_where_it_stopped),
    Row(test_drain.test_ac_05_a_partition_that_waits_is_skipped),
    # Java sends nothing more to a partition while a request with expired batches has no answer. That may be one it
    # sent again just before their time was over, and then the last record must outlive request.timeout.ms.
    Row(
        test_deadlines.test_bp_06_memory_comes_back_once,
        settings={"delivery.timeout.ms": 3_000, "request.timeout.ms": 1_000},
    ),
    Row(test_deadlines.test_ac_07_two_halves, settings={"compression.type": "gzip"}),
    Row(test_deadlines.test_ac_07_split),
    Row(test_memory.test_bp_05_memory_of_an_expired_batch_is_not_used_again),
    Row(test_memory.always_refused, {"records": 10_000, "size": 0}),
    Row(test_metadata.test_md_02_many_ask_for_one_topic),
    Row(test_metadata.test_md_03_a_topic_that_never_comes),
    Row(test_aging_metadata.test_md_05_an_unused_topic_is_asked_for_no_more),
    Row(test_aging_metadata.test_md_07_a_stale_broker_cannot_pull_the_leader_back),
    Row(test_aging_metadata.test_md_15_a_broker_asks_to_bootstrap_again),
    Row(test_metadata.test_md_08_a_topic_is_made_anew),
    *(Row(test_metadata.test_md_11_leaders_move, {"with_hint": hint}) for hint in (True, False)),
    Row(test_metadata.test_md_11_a_hint_is_enough),
    Row(test_metadata.test_md_12_a_storage_error_makes_no_storm),
    Row(test_metadata.test_md_13_a_first_answer_without_leaders),
    Row(test_connections.test_sn_11_the_broker_closes_idle_connections),
    Row(test_connections.test_sn_11_a_corrupt_batch_goes_again),
    Row(test_connections.test_sn_11_version_negotiation_ends, departs=r"assert \d+ <= 2"),
    Row(test_connections.test_bf_04_a_broker_restarts_on_its_port),
    Row(test_connections.test_bf_04_metadata_still_names_the_dead_leader),
    Row(test_authorization.test_se_06_denied_then_granted),
    Row(test_slow_brokers.test_bf_02_a_broker_that_hears_nothing),
    Row(test_slow_brokers.test_rf_11_keyless_records_avoid_a_broker_that_hangs),
    Row(test_retries.test_sn_01_one_cut_is_survived, settings=PLAIN),
    Row(test_retries.test_sn_01_two_cuts_are_not, settings=PLAIN),
    Row(sn_01_storage_error),
    Row(id_13_unknown_fate, departs="not delivered: The request timed out"),
    *(Row(sn_10_acks, {"acks": acks}) for acks in ("0", "1", "all")),
    Row(test_order.test_sn_03_the_second_waits_for_the_first),
    Row(test_order.test_sn_03_the_first_expires),
    Row(fc_07_close_at_once),
    Row(er_04_refused_by_send, settings={"max.block.ms": 500}),
]


TRIES = 3
"""Java's timers are Java's: on a busy machine one of its batches expires, or goes again, a moment before the scenario
has it where it wants it. What a row claims is that Java can do what is asked of us, so a run that agrees is enough;
one that never agrees fails with its last words."""


@contextlib.contextmanager
def a_harness(java: JavaProducers, row: Row) -> Iterator[JavaHarness]:
    module = row.run.__globals__
    with FakeBroker(nodes=2, receive_buffer_bytes=module.get("RECEIVE_BUFFER_BYTES")) as kafka:
        made = JavaHarness(kafka, java, {**module.get("SETTINGS", {}), **row.settings})
        try:
            yield made
        finally:
            made.end()


def run(row: Row, harness: JavaHarness | JavaRealHarness, **arguments: object) -> None:
    if row.departs is None:
        row.run(harness, **arguments, **row.arguments)
    else:
        with pytest.raises(AssertionError, match=row.departs):
            row.run(harness, **arguments, **row.arguments)


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name)
def test_row(java: JavaProducers, row: Row) -> None:
    for left in reversed(range(TRIES)):
        try:
            with a_harness(java, row) as harness:
                return run(row, harness)
        except (AssertionError, TimeoutError, pytest.fail.Exception):
            if not left:
                raise


REAL_ROWS = [
    Row(test_real_kafka.test_id_02_one_identity_no_holes),
    *(Row(test_real_kafka.test_id_03_lost_answers, {"lost": lost}) for lost in (1, 5)),
    Row(test_real_kafka.test_id_04_refused_first_in_flight),
    Row(test_real_kafka.test_id_05_unknown_fates),
    Row(test_real_kafka.test_sn_05_compacted_topic, departs=r"assert \d+ == 90"),
    Row(test_real_kafka.test_bf_04_the_broker_bounces),
]


@pytest.fixture(scope="module")
def real_harness(kafka: KafkaCluster, java: JavaProducers) -> Iterator[JavaRealHarness]:
    with FaultProxy(kafka.bootstrap_servers) as proxy:
        made = JavaRealHarness(kafka, proxy, java)
        yield made
        proxy.clear_rules()
        made.close(0)


@pytest.mark.parametrize("row", REAL_ROWS, ids=lambda row: row.name)
def test_real_row(real_harness: JavaRealHarness, new_topic: NewTopic, row: Row) -> None:
    real_harness.proxy.clear_rules()
    run(row, real_harness, new_topic=new_topic)
