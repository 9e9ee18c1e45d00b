"""Metadata: rules M1-M3, M6-M9 and the sans-IO half of M4 and M5, by a manual clock."""

from __future__ import annotations

import math

import pytest

from sidecar.common.model import Node
from sidecar.metadata.errors import (
    EmptyPartitionListError,
    InvalidTopicError,
    MetadataAuthenticationError,
    MetadataClosed,
    TopicAuthorizationError,
)
from sidecar.metadata.metadata import EXPIRY_NOT_SET, Metadata, MetadataConfig
from tests.configs import config_with
from tests.manual_clock import ManualClock

from .answers import answer, good, partition, topic, topic_id


@pytest.mark.rule("M1")
def test_only_a_new_topic_asks_for_an_update(metadata: Metadata, clock: ManualClock) -> None:
    metadata.update(answer(), clock.now_ms())
    assert not metadata.need_update
    assert metadata.add("orders", clock.now_ms())
    assert metadata.need_update
    metadata.update(answer(good("orders")), clock.now_ms())
    assert not metadata.need_update
    assert not metadata.add("orders", clock.now_ms())
    assert not metadata.need_update


@pytest.mark.rule("M1")
def test_only_topics_in_use_are_kept_from_an_answer(metadata: Metadata, clock: ManualClock) -> None:
    metadata.add("orders", clock.now_ms())
    metadata.update(answer(good("orders"), good("stranger")), clock.now_ms())
    assert set(metadata.snapshot.topics) == {"orders"}


@pytest.mark.rule("M1")
def test_a_topic_added_while_a_request_is_under_way_is_asked_for_next(
    metadata: Metadata, clock: ManualClock
) -> None:
    metadata.add("first", clock.now_ms())
    asked = metadata.topics
    metadata.add("second", clock.now_ms())
    metadata.update(answer(good("first")), clock.now_ms(), requested=asked)
    assert metadata.need_update
    assert metadata._expiry_ms.get("second") == EXPIRY_NOT_SET
    assert metadata.topics == {"first", "second"}


@pytest.mark.rule("M2")
def test_expiry_starts_at_the_first_update_and_use_renews_it(metadata: Metadata, clock: ManualClock) -> None:
    metadata.add("orders", clock.now_ms())
    assert metadata._expiry_ms.get("orders") == EXPIRY_NOT_SET
    clock.advance(1_000_000)  # the first update may be very late: the topic is still wanted
    metadata.update(answer(good("orders")), clock.now_ms())
    assert metadata._expiry_ms.get("orders") == clock.now_ms() + 300_000
    clock.advance(299_999)
    metadata.add("orders", clock.now_ms())
    assert metadata._expiry_ms.get("orders") == clock.now_ms() + 300_000


@pytest.mark.rule("M2")
def test_an_unused_topic_is_dropped_at_the_next_update_and_comes_back_on_use(
    metadata: Metadata, clock: ManualClock
) -> None:
    metadata.add("idle", clock.now_ms())
    metadata.add("busy", clock.now_ms())
    metadata.update(answer(good("idle"), good("busy")), clock.now_ms())
    for _ in range(3):
        clock.advance(150_000)
        metadata.add("busy", clock.now_ms())
        result = metadata.update(answer(good("idle"), good("busy")), clock.now_ms())
        if result.expired:
            break
    assert result.expired == {"idle"}
    assert metadata.topics == {"busy"}
    assert "idle" not in metadata.snapshot.topics
    assert metadata.add("idle", clock.now_ms())
    assert metadata.need_update


@pytest.mark.rule("M2")
def test_an_expired_topic_stays_until_an_update(metadata: Metadata, clock: ManualClock) -> None:
    metadata.add("orders", clock.now_ms())
    metadata.update(answer(good("orders")), clock.now_ms())
    clock.advance(400_000)
    assert metadata.topics == {"orders"}
    assert metadata.snapshot.partition_count("orders") == 2


@pytest.mark.rule("M3")
def test_versions_and_the_wish_for_an_update(metadata: Metadata, clock: ManualClock) -> None:
    assert metadata.version == 0
    assert metadata.request_update() == 0
    assert metadata.need_update
    for version in (1, 2, 3):
        metadata.update(answer(), clock.now_ms())
        assert metadata.version == version
        assert not metadata.need_update
        assert metadata.request_update() == version


@pytest.mark.rule("M3")
def test_a_failed_update_is_no_update(metadata: Metadata, clock: ManualClock) -> None:
    metadata.request_update()
    metadata.failed_update(clock.now_ms())
    assert metadata.version == 0
    assert metadata.need_update


@pytest.mark.rule("M4")
def test_a_waiter_sees_versions_close_and_authentication_once(metadata: Metadata, clock: ManualClock) -> None:
    assert not metadata.check_update(0)
    metadata.failed_update(clock.now_ms(), "broker says no")
    with pytest.raises(MetadataAuthenticationError, match="broker says no"):
        metadata.check_update(0)
    assert not metadata.check_update(0)
    metadata.update(answer(), clock.now_ms())
    assert metadata.check_update(0)
    metadata.close()
    assert metadata.check_update(0)
    with pytest.raises(MetadataClosed, match=r"^Requested metadata update after close$"):
        metadata.check_update(1)


@pytest.mark.rule("M5")
def test_a_record_can_go_once_its_partition_is_known(metadata: Metadata, clock: ManualClock) -> None:
    assert metadata.check_topic("orders") is None
    metadata.add("orders", clock.now_ms())
    metadata.update(answer(good("orders", 3)), clock.now_ms())
    assert metadata.snapshot.partition_count("orders") == 3


@pytest.mark.rule("M5")
@pytest.mark.rule("M9")
@pytest.mark.parametrize(("code", "error"), [(29, TopicAuthorizationError), (17, InvalidTopicError)])
def test_hopeless_topics_fail_at_once_and_alone(
    metadata: Metadata, clock: ManualClock, code: int, error: type[Exception]
) -> None:
    for name in ("bad", "fine"):
        metadata.add(name, clock.now_ms())
    metadata.update(answer(topic("bad", error=code), good("fine")), clock.now_ms())
    with pytest.raises(error, match="bad"):
        metadata.check_topic("bad")
    assert metadata.snapshot.partition_count("fine") == 2
    assert not metadata.need_update, "asking again at once does not help"
    metadata.update(answer(good("bad"), good("fine")), clock.now_ms())
    assert metadata.snapshot.partition_count("bad") == 2
    assert not metadata.topic_errors


@pytest.mark.rule("M6")
def test_two_updates_are_the_backoff_apart_however_many_ask(metadata: Metadata, clock: ManualClock) -> None:
    assert metadata.time_to_next_update(clock.now_ms()) == 0
    metadata.update(answer(), clock.now_ms())
    for _ in range(100):
        metadata.request_update()
        metadata.add("orders", clock.now_ms())
    assert metadata.time_to_next_update(clock.now_ms()) == 100
    clock.advance(60)
    assert metadata.time_to_next_update(clock.now_ms()) == 40
    clock.advance(40)
    assert metadata.time_to_next_update(clock.now_ms()) == 0


@pytest.mark.rule("M6")
def test_failures_and_equal_answers_back_off_to_the_maximum(metadata: Metadata, clock: ManualClock) -> None:
    waits = []
    for _ in range(6):
        metadata.request_update()
        metadata.failed_update(clock.now_ms())
        waits.append(metadata.time_to_next_update(clock.now_ms()))
        clock.advance(waits[-1])
    assert waits == [100, 200, 400, 800, 1000, 1000]
    waits = []
    for _ in range(6):
        metadata.update(answer(), clock.now_ms())
        metadata.request_update()
        waits.append(metadata.time_to_next_update(clock.now_ms()))
        clock.advance(waits[-1])
    assert waits == [100, 200, 400, 800, 1000, 1000]
    metadata.update(answer(nodes=(Node(9, "new", 1),)), clock.now_ms())
    metadata.request_update()
    assert metadata.time_to_next_update(clock.now_ms()) == 100, "something changed: quick again"


@pytest.mark.rule("M6")
@pytest.mark.parametrize("random", [0.0, 0.25, 0.999])
def test_jitter_never_brings_updates_nearer_than_the_backoff(random: float, clock: ManualClock) -> None:
    metadata = Metadata(config_with(MetadataConfig), lambda: random)
    waits = []
    for _ in range(8):
        metadata.failed_update(clock.now_ms())
        waits.append(metadata.time_to_next_update(clock.now_ms()))
    assert min(waits) >= 100
    assert max(waits) <= 1000
    assert waits == sorted(waits)


@pytest.mark.rule("M6")
def test_a_refresh_is_due_at_the_maximum_age(metadata: Metadata, clock: ManualClock) -> None:
    metadata.update(answer(), clock.now_ms())
    assert metadata.time_to_next_update(clock.now_ms()) == 300_000
    clock.advance(300_000)
    assert metadata.time_to_next_update(clock.now_ms()) == 0


@pytest.mark.rule("M7")
def test_gaps_in_an_answer_ask_for_another(metadata: Metadata, clock: ManualClock) -> None:
    metadata.add("orders", clock.now_ms())
    leaderless = topic("orders", partition(0), partition(1, leader=-1, error=5))
    dead_leader = topic("orders", partition(0), partition(1, leader=77))
    for gap in (topic("orders", error=3), topic("orders", error=5), leaderless, dead_leader, topic("orders")):
        metadata.update(answer(gap), clock.now_ms())
        assert metadata.need_update, gap
    metadata.update(answer(good("orders")), clock.now_ms())
    assert not metadata.need_update


@pytest.mark.rule("M7")
def test_the_old_producers_dial(clock: ManualClock) -> None:
    def with_dial(interval_ms: float) -> Metadata:
        metadata = Metadata(
            config_with(MetadataConfig, topic_metadata_refresh_interval_ms=interval_ms), lambda: 0.5
        )
        metadata.add("orders", clock.now_ms())
        metadata.update(answer(good("orders")), clock.now_ms())
        return metadata

    only_failure, each_send, timed = with_dial(-1), with_dial(0), with_dial(60_000)
    clock.advance(10_000_000)  # nobody sends: nobody refreshes
    for metadata in (only_failure, each_send, timed):
        assert metadata.time_to_next_update(clock.now_ms()) == math.inf
    for metadata in (only_failure, each_send, timed):
        metadata.records_sent(["orders"], clock.now_ms())
    assert not only_failure.need_update
    assert each_send.need_update
    assert timed.need_update
    for metadata in (only_failure, each_send, timed):
        metadata.update(answer(good("orders")), clock.now_ms())
        clock.advance(59_000)
        metadata.records_sent(["orders"], clock.now_ms())
    assert not only_failure.need_update
    assert each_send.need_update
    assert not timed.need_update
    only_failure.request_update()
    assert only_failure.time_to_next_update(clock.now_ms()) == 0


@pytest.mark.rule("M8")
def test_a_grown_topic_and_its_leaderless_partitions(metadata: Metadata, clock: ManualClock) -> None:
    metadata.add("orders", clock.now_ms())
    metadata.update(answer(good("orders", 1)), clock.now_ms())
    metadata.update(
        answer(topic("orders", partition(0), partition(1, leader=-1), partition(2))), clock.now_ms()
    )
    assert metadata.snapshot.partition_count("orders") == 3
    assert metadata.snapshot.available_partitions("orders") == (0, 2)
    assert metadata.snapshot.leader("orders", 1) is None


@pytest.mark.rule("M8")
def test_no_partitions_without_an_error_is_an_error_of_its_own(
    metadata: Metadata, clock: ManualClock
) -> None:
    metadata.add("orders", clock.now_ms())
    metadata.update(answer(topic("orders")), clock.now_ms())
    assert metadata.check_topic("orders") is None
    assert isinstance(metadata.why_not("orders"), EmptyPartitionListError)
    assert "orders" in metadata.topic_errors["orders"].text


def test_leader_epochs_never_go_back_within_a_topic_id(metadata: Metadata, clock: ManualClock) -> None:
    """A broker that lags behind must not pull the leader back to the old one."""
    metadata.add("t", clock.now_ms())

    def leader_after(leader: int, epoch: int, id_number: int | None = 7) -> tuple[int, int]:
        heard = topic("t", partition(0, leader, epoch), id=None if id_number is None else topic_id(id_number))
        metadata.update(answer(heard), clock.now_ms())
        state = metadata.snapshot.partition("t", 0)
        assert state is not None
        return state.leader, state.leader_epoch

    assert leader_after(1, 10) == (1, 10)
    assert leader_after(2, 9) == (1, 10)
    assert leader_after(3, 10) == (3, 10), "an equal epoch is news"
    assert leader_after(2, -1) == (3, 10), "no epoch never beats a known one"
    assert leader_after(2, 9, id_number=None) == (3, 10), "without an id the epoch rule holds"
    assert leader_after(-1, -1) == (-1, 10), "no leader is believed, the epoch kept"
    assert leader_after(2, 5, id_number=8) == (2, 5), "another topic under the same name"
    assert leader_after(1, 4, id_number=8) == (2, 5)


def test_a_partition_left_out_of_an_answer_is_leaderless_not_gone(
    metadata: Metadata, clock: ManualClock
) -> None:
    metadata.add("t", clock.now_ms())
    metadata.update(answer(good("t", 3, topic_id(1))), clock.now_ms())
    metadata.update(answer(topic("t", partition(0), id=topic_id(1))), clock.now_ms())
    assert metadata.snapshot.partition_count("t") == 3
    assert metadata.snapshot.available_partitions("t") == (0,)
    assert metadata.need_update
    metadata.update(answer(good("t", 3, topic_id(1))), clock.now_ms())
    assert metadata.snapshot.available_partitions("t") == (0, 1, 2)


def test_a_known_topic_is_gone_only_when_several_answers_say_so(
    metadata: Metadata, clock: ManualClock
) -> None:
    """One broker that has not caught up says "unknown"; records already accepted must survive that."""
    metadata.add("t", clock.now_ms())
    metadata.update(answer(good("t")), clock.now_ms())
    for _ in range(2):
        metadata.update(answer(topic("t", error=3)), clock.now_ms())
        clock.advance(1_500)
    assert metadata.snapshot.partition_count("t") == 2
    metadata.update(answer(good("t")), clock.now_ms())  # it was only late: counting starts over
    for _ in range(2):
        metadata.update(answer(topic("t", error=3)), clock.now_ms())
        clock.advance(1_500)
    assert metadata.snapshot.partition_count("t") == 2
    metadata.update(answer(topic("t", error=3)), clock.now_ms())
    assert metadata.check_topic("t") is None
    assert metadata.topic_errors["t"].code == 3
    assert "'t' does not exist" in metadata.topic_errors["t"].text


@pytest.mark.rule("M9")
def test_one_bad_topic_never_blocks_another(metadata: Metadata, clock: ManualClock) -> None:
    for name in ("unknown", "forbidden", "invalid", "fine"):
        metadata.add(name, clock.now_ms())
    bad = [topic(name, error=code) for name, code in (("unknown", 3), ("forbidden", 29), ("invalid", 17))]
    metadata.update(answer(*bad, good("fine")), clock.now_ms())
    assert set(metadata.topic_errors) == {"unknown", "forbidden", "invalid"}
    assert metadata.snapshot.partition_count("fine") == 2
    assert metadata.check_topic("unknown") is None


@pytest.mark.rule("M2")
def test_an_expired_topic_is_reported_deleted_once_when_it_is_missing(
    metadata: Metadata, clock: ManualClock
) -> None:
    """It was deleted meanwhile: others may know it still, and must hear of it though it is not in ``old``."""
    metadata.add("orders", clock.now_ms())
    metadata.update(answer(good("orders")), clock.now_ms())
    clock.advance(300_001)
    result = metadata.update(answer(), clock.now_ms())
    assert (result.expired, result.gone) == ({"orders"}, frozenset())
    metadata.add("orders", clock.now_ms())
    missing = answer(topic("orders", error=3))
    told = []
    for _ in range(8):
        clock.advance(600)
        metadata.add("orders", clock.now_ms())
        if not any(told):
            metadata.recheck(["orders"])  # who asks again and again does not put it off
        told.append(metadata.update(missing, clock.now_ms()).gone)
    assert told == [frozenset()] * 4 + [{"orders"}] + [frozenset()] * 3, "sure first, and then once"
    metadata.recheck(["orders"])
    assert metadata.update(missing, clock.now_ms()).gone == frozenset()
    clock.advance(2_000)
    metadata.update(missing, clock.now_ms())
    assert metadata.update(missing, clock.now_ms()).gone == {"orders"}, "again for who asks anew"
    metadata.update(answer(good("orders")), clock.now_ms())
    for _ in range(3):
        clock.advance(1_000)
        result = metadata.update(missing, clock.now_ms())
    assert "orders" in result.old.topics and "orders" not in result.new.topics
    assert result.gone == frozenset(), "the difference of the two says it"


@pytest.mark.rule("M2")
def test_a_topic_that_expired_and_is_there_is_not_gone(metadata: Metadata, clock: ManualClock) -> None:
    metadata.add("orders", clock.now_ms())
    metadata.update(answer(good("orders")), clock.now_ms())
    clock.advance(300_001)
    metadata.update(answer(), clock.now_ms())
    metadata.add("orders", clock.now_ms())
    for error in (3, 5, 3, 0, 3, 3):  # one broker lags behind
        clock.advance(900)
        heard = good("orders") if error == 0 else topic("orders", error=error)
        assert metadata.update(answer(heard), clock.now_ms()).gone == frozenset()
    assert metadata.snapshot.partition_count("orders") == 2
