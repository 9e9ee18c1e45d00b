"""Goal: what workers report becomes one truth for the operator: brokers, who waits for what, and one line a change."""

from __future__ import annotations

import logging

import pytest

from sidecar.common.condition import BrokerRow, HoldRow, LettersRow, ShareRow, WaitCause, WaitRow
from sidecar.common.control import Condition
from sidecar.common.model import Node
from sidecar.controller.status.advice import wait_advice
from sidecar.controller.status.broker_book import (
    DEPARTED_MS,
    IN_SYNC_MS,
    LINE_INTERVAL_MS,
    VOUCHED_MS,
    BrokerBook,
)
from sidecar.controller.status.condition_book import SHOWN_MAX, ConditionBook

NODES = {1: Node(1, "kafka1", 9092), 2: Node(2, "kafka2", 9092)}
NOW_MS = 1_000_000.0


class Harness:
    """Two workers, two brokers, and a clock that is moved by hand."""

    def __init__(self) -> None:
        self.held = 1
        self.paused: set[str] = set()
        self.book = ConditionBook(
            page_count=100, page_bytes=16384, held_records=lambda: self.held, paused=lambda: self.paused
        )
        self.now_ms = NOW_MS
        self.answered_ms = NOW_MS
        self.nodes = dict(NODES)
        self.error = ""

    def hear(self, worker: int, *brokers: BrokerRow, after_ms: float = 0.0, **more: object) -> None:
        self.now_ms += after_ms
        self.book.report(worker, Condition(brokers=brokers, **more))  # type: ignore[arg-type]
        self.tick()

    def tick(self, after_ms: float = 0.0) -> None:
        self.now_ms += after_ms
        self.book.tick(self.nodes, self.answered_ms, self.error, self.now_ms)

    def state(self, broker: int = 1) -> str:
        return self.book.brokers.state_of(broker)

    def down(self, *, held: int = 5) -> BrokerRow:
        return BrokerRow(1, "down", self.now_ms, "refused", held_records=held, oldest_held_ms=self.now_ms)


def up(broker: int = 1) -> BrokerRow:
    return BrokerRow(broker, "up", NOW_MS, in_flight=1)


def test_a_broker_is_down_for_all_once_a_worker_with_records_for_it_says_so(
    caplog: pytest.LogCaptureFixture,
) -> None:
    harness = Harness()
    with caplog.at_level(logging.INFO):
        harness.hear(0, up())
        harness.hear(1, up(), up(2))
        assert not caplog.records, "that they are up is no news"
        harness.hear(0, harness.down())
        harness.hear(1, harness.down(), up(2))
        assert (harness.state(1), harness.state(2)) == ("down", "up")
        assert harness.book.trouble(harness.now_ms) is None, "it may be back at once"
        harness.tick(5_000.0)
    (line,) = caplog.records
    assert line.levelno == logging.WARNING
    assert "Broker 1 (kafka1:9092) is down: refused; 5 records wait for it." in line.getMessage()
    trouble = harness.book.trouble(harness.now_ms)
    assert trouble is not None
    assert "Broker 1 (kafka1:9092) has been down for 5 s and 10 records wait for it" in trouble.sentence

    caplog.clear()
    with caplog.at_level(logging.INFO):
        harness.hear(0, up(), after_ms=LINE_INTERVAL_MS)
        harness.hear(1, up(), up(2))
    assert [line.getMessage() for line in caplog.records] == [
        "Broker 1 (kafka1:9092) is up again after 10 s."
    ]
    assert harness.book.trouble(harness.now_ms) is None


def test_a_silent_broker_is_in_trouble_at_once_and_its_age_counts_from_the_oldest_request() -> None:
    harness = Harness()
    since_ms = NOW_MS - 7_000.0
    row = BrokerRow(2, "silent", since_ms, in_flight=3, held_records=9, oldest_held_ms=since_ms)
    wait = WaitRow("orders", 1, 2, since_ms, "broker")
    harness.hear(0, row, waits=(wait,))
    trouble = harness.book.trouble(harness.now_ms)
    assert trouble is not None
    assert trouble.sentence == (
        "Broker 2 (kafka2:9092) has been silent for 7 s and 9 records wait for it; "
        "oldest held record 7 s, orders-1."
    )
    shown = harness.book.status(0, 5, harness.now_ms)
    assert shown["oldest_held"]["reason"] == "broker 2 silent"
    assert [each["state"] for each in shown["brokers"]] == ["known", "silent"]


def test_a_worker_that_needs_a_broker_no_more_is_overruled(caplog: pytest.LogCaptureFixture) -> None:
    """Its last word is from when it lost the broker: another worker is connected, or metadata names it long after."""
    harness = Harness()
    harness.hear(0, harness.down(held=0))
    assert harness.state() == "down"
    assert harness.book.brokers.wants_metadata
    harness.hear(1, up())
    assert harness.state() == "up"

    alone = Harness()
    alone.hear(0, alone.down(held=0))
    alone.answered_ms = alone.now_ms + VOUCHED_MS
    alone.tick(VOUCHED_MS)
    assert alone.state() == "known"
    assert not alone.book.brokers.wants_metadata
    assert caplog.messages[-1].endswith(
        "may be back after 12 s: Kafka names it, and no record waits for it. "
        "Nothing here has connected to it since."
    )


def test_a_broker_is_up_only_while_somebody_is_connected_to_it(caplog: pytest.LogCaptureFixture) -> None:
    """Kafka names a broker also while its port is closed to this host."""
    harness = Harness()
    harness.hear(0, up())
    assert (harness.state(1), harness.state(2)) == ("up", "known")
    lost = BrokerRow(1, "known", NOW_MS, "kafka1:9092 closed the connection.")
    harness.hear(0, lost, after_ms=1_000.0)
    harness.tick(60_000.0)
    first, _ = harness.book.status(0, 5, harness.now_ms)["brokers"]
    assert (first["state"], first["since_seconds"]) == ("known", 60.0)
    assert first["last_error"] == "kafka1:9092 closed the connection."
    assert not harness.book.is_eventful and harness.book.trouble(harness.now_ms) is None
    harness.hear(1, up())
    assert (harness.state(), caplog.messages) == ("up", []), "nobody missed it"


def test_a_broker_that_may_be_back_is_up_again_when_it_is_connected_to(
    caplog: pytest.LogCaptureFixture,
) -> None:
    harness = Harness()
    harness.hear(0, harness.down(held=0))
    harness.answered_ms = harness.now_ms + VOUCHED_MS
    harness.tick(VOUCHED_MS)
    harness.hear(0, up(), after_ms=8_000.0)
    assert [line.split(") ")[1].split(":")[0] for line in caplog.messages] == [
        "is down",
        "may be back after 12 s",
        "is up again after 20 s.",
    ]


def test_one_record_that_waits_is_one() -> None:
    harness = Harness()
    harness.hear(0, harness.down(held=1))
    harness.tick(5_000.0)
    trouble = harness.book.trouble(harness.now_ms)
    assert trouble is not None
    assert "has been down for 5 s and 1 record waits for it" in trouble.sentence


def test_a_broker_that_comes_and_goes_fills_no_log(caplog: pytest.LogCaptureFixture) -> None:
    harness = Harness()
    for _ in range(10):
        harness.hear(0, harness.down(), after_ms=500.0)
        harness.hear(0, up(), after_ms=500.0)
    assert len(caplog.records) <= 3, "one line in LINE_INTERVAL_MS"


def test_a_broker_that_metadata_no_longer_names_is_shown_for_a_while() -> None:
    harness = Harness()
    harness.tick()
    harness.nodes = {1: NODES[1]}
    harness.tick(1_000.0)
    assert harness.state(2) == "down"
    harness.tick(DEPARTED_MS)
    assert harness.state(2) == "down"
    harness.tick(1.0)
    assert harness.state(2) == ""


def test_while_all_is_well_each_change_is_seen_at_the_next_look() -> None:
    def calm() -> Harness:
        harness = Harness()
        harness.hear(0, up(), up(2))
        harness.tick(1_000.0)
        assert harness.book.brokers.is_calm and not harness.book.is_eventful
        return harness

    unreachable = calm()
    unreachable.book.worker_left(0)
    unreachable.tick(1_000.0)
    unreachable.error = "Kafka cannot be reached."
    unreachable.tick(1_000.0)
    assert unreachable.state() == "down" and unreachable.book.is_eventful
    unreachable.error = ""
    unreachable.tick(1_000.0)
    assert unreachable.state() == "known" and not unreachable.book.is_eventful
    moved = calm()
    moved.nodes = {1: Node(1, "kafka9", 9092), 2: NODES[2]}
    moved.tick(1_000.0)
    assert moved.book.brokers.to_list(moved.now_ms, 0)[0]["address"] == "kafka9:9092"
    held = calm()
    held.hear(0, up(), up(2), holds=(HoldRow("client", "pool", "Orders", held.now_ms, 1),))
    assert held.book.is_eventful and held.book.holds(held.now_ms)


def test_a_worker_that_is_gone_says_nothing_any_more() -> None:
    harness = Harness()
    harness.hear(0, harness.down(held=0))
    harness.book.worker_left(0)
    harness.tick()
    assert harness.state() == "known"


def test_the_reason_why_records_of_a_dead_worker_wait_is_known_until_its_successor_reports(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """The log said that the broker may be back and that no record waits for it, and status that it had just gone."""
    harness = Harness()
    wait = WaitRow("orders", 1, 1, NOW_MS, "broker", "refused")
    harness.hear(0, harness.down(), up(2), waits=(wait,))
    harness.tick(10_000.0)
    before = harness.book.trouble(harness.now_ms)
    harness.book.worker_left(0)
    harness.tick()
    assert harness.book.trouble(harness.now_ms) == before is not None
    connecting = BrokerRow(1, "connecting", harness.now_ms, held_records=5, oldest_held_ms=NOW_MS)
    harness.hear(0, connecting, waits=(wait,), after_ms=500.0)
    harness.hear(0, harness.down(), waits=(wait,), after_ms=500.0)
    first, second = harness.book.status(0, 5, harness.now_ms)["brokers"]
    assert (first["state"], first["since_seconds"], second["state"]) == ("down", 11.0, "known")
    (line,) = caplog.messages
    assert line.startswith("Broker 1 (kafka1:9092) is down")


def test_causes_that_pass_at_once_have_no_line(caplog: pytest.LogCaptureFixture) -> None:
    """Kafka is back and is being connected to, or a worker that has just begun waits for its metadata."""
    harness = Harness()
    for cause in ("broker", "metadata"):
        harness.hear(0, waits=(WaitRow("orders", 1, 1, NOW_MS - 16_000.0, cause),))
        harness.hear(0, up(), after_ms=1_000.0)
    assert not caplog.messages
    harness.hear(0, waits=(WaitRow("orders", 1, -1, NOW_MS - 16_000.0, "metadata"),))
    harness.tick(3_000.0)
    (line,) = caplog.messages
    assert line.startswith("Oldest held record 21 s, orders-1, the cluster's metadata has not come since")
    harness.error = "Kafka is not reachable."
    harness.tick(60_000.0)
    assert len(caplog.messages) == 1, "the line about the cluster says it"


def test_the_oldest_record_of_all_workers_is_said_once_a_minute(caplog: pytest.LogCaptureFixture) -> None:
    harness = Harness()
    young = WaitRow("Orders", 0, 1, NOW_MS - 1_000.0, "no_leader")
    old = WaitRow("Orders", 3, -1, NOW_MS - 6_000.0, "no_leader")
    with caplog.at_level(logging.INFO):
        harness.hear(0, waits=(young,))
        assert not caplog.records
        harness.hear(1, waits=(old,))
        for _ in range(59):
            harness.tick(1_000.0)
        assert [line.getMessage().split(". ")[0] for line in caplog.records] == [
            "Oldest held record 6 s, Orders-3, no leader"
        ]
        harness.tick(1_000.0)
        assert len(caplog.records) == 2
        harness.hear(0)
        harness.hear(1)
    assert caplog.records[-1].getMessage() == "No record waits for long any more."


def test_a_broker_that_is_down_has_one_line_and_its_oldest_record_one_a_minute_later(
    caplog: pytest.LogCaptureFixture,
) -> None:
    harness = Harness()
    harness.hear(0, harness.down(), waits=(WaitRow("orders", 1, 1, NOW_MS, "broker", "refused"),))
    for _ in range(60):
        harness.tick(1_000.0)
    (line,) = caplog.messages
    assert line.startswith("Broker 1 (kafka1:9092) is down: refused")
    harness.tick(5_000.0)
    assert caplog.messages[1].startswith("Oldest held record 1 min 5 s, orders-1, broker 1 down: refused.")


def test_a_broker_that_falls_silent_is_no_line_about_an_answer_first(
    caplog: pytest.LogCaptureFixture,
) -> None:
    harness = Harness()
    row = WaitRow("orders", 1, 2, NOW_MS - 5_500.0, "unanswered")
    harness.hear(0, up(2), waits=(row,))
    silent = BrokerRow(2, "silent", NOW_MS - 5_400.0, in_flight=1, held_records=1, oldest_held_ms=NOW_MS)
    harness.hear(0, silent, waits=(row._replace(cause="broker"),), after_ms=600.0)
    (line,) = caplog.messages
    assert line.startswith("Broker 2 (kafka2:9092) is silent")
    slow = Harness()
    slow.hear(0, up(2), waits=(row,))
    slow.tick(2_000.0)
    assert caplog.messages[-1].startswith("Oldest held record 7 s, orders-1, broker 2 has not answered yet.")


def test_records_that_linger_are_no_trouble(caplog: pytest.LogCaptureFixture) -> None:
    harness = Harness()
    harness.hear(0, waits=(WaitRow("orders", 0, 1, NOW_MS - 20_000.0, "linger"),))
    assert harness.book.trouble(harness.now_ms) is None
    assert not caplog.records


def test_a_paused_topic_has_no_second_note_and_no_line(caplog: pytest.LogCaptureFixture) -> None:
    """The order to pause has its own note and its own line."""
    harness = Harness()
    harness.hear(0, waits=(WaitRow("orders", 2, 1, NOW_MS - 20_000.0, "paused"),))
    assert harness.book.notices(0, harness.now_ms) == []
    assert harness.book.trouble(harness.now_ms) is None
    oldest = harness.book.status(0, 5, harness.now_ms)["oldest_held"]
    assert (oldest["seconds"], oldest["reason"]) == (20.0, "paused by an operator")
    assert not caplog.records


def test_a_client_that_waits_for_a_paused_topic_is_told_so(caplog: pytest.LogCaptureFixture) -> None:
    harness = Harness()
    hold = HoldRow("bulk", "share", "orders", NOW_MS - 6_000.0, 1)
    harness.paused.add("orders")
    harness.hear(0, holds=(hold,), topics=(ShareRow("orders", 1.0, 50, is_full=True),))
    advice = "Topic orders is paused: `kafka-sidecar resume` lets it continue."
    (notice,) = harness.book.notices(50, harness.now_ms)
    assert notice == f"pool 50 %, topic orders at its share, client bulk waits for 6 s. {advice}"
    assert caplog.messages[-1].endswith(f"topic orders holds its share of the buffer pool. {advice}")
    harness.paused.clear()
    (notice,) = harness.book.notices(50, harness.now_ms)
    assert "paused" not in notice


@pytest.mark.parametrize("deliberate", ["paused", "linger"])
def test_a_deliberate_wait_hides_no_trouble(deliberate: str, caplog: pytest.LogCaptureFixture) -> None:
    """The paused record was the oldest one, so that nobody saw the refusal of another topic."""
    harness = Harness()
    paused = WaitRow("paused", 0, 1, NOW_MS - 60_000.0, deliberate)
    refused = WaitRow("orders", 1, 2, NOW_MS - 6_000.0, "refused", "NOT_ENOUGH_REPLICAS")
    harness.hear(0, waits=(paused, WaitRow("orders", 0, 1, NOW_MS - 100.0, "unanswered")))
    assert harness.book.status(0, 5, harness.now_ms)["oldest_held"]["topic"] == "paused", (
        "the other one is young"
    )
    harness.hear(1, waits=(paused, refused))
    trouble = harness.book.trouble(harness.now_ms)
    assert trouble is not None
    assert trouble.sentence == "Oldest held record 6 s, orders-1, broker 2 refuses: NOT_ENOUGH_REPLICAS."
    assert caplog.messages == [f"{trouble.sentence} {trouble.advice}"]


def test_a_worker_without_metadata_says_who_waits_and_leaves_the_rest_to_its_predecessor() -> None:
    """For 5 s nothing of it was shown: neither its held clients nor what they hold of the pool."""
    harness = Harness()
    wait = WaitRow("orders", 1, 1, NOW_MS - 8_000.0, "broker")
    harness.hear(0, harness.down(), waits=(wait,))
    harness.book.worker_left(0)
    hold = HoldRow("bulk", "pool", "orders", harness.now_ms - 2_000.0, 1)
    harness.hear(
        0, holds=(hold,), topics=(ShareRow("orders", 0.5, 50),), knows_cluster=False, after_ms=6_000.0
    )
    shown = harness.book.status(50, 5, harness.now_ms)
    assert [each["client"] for each in shown["holds"]] == ["bulk"]
    assert [each["topic"] for each in shown["pool"]["by_topic"]] == ["orders"]
    trouble = harness.book.trouble(harness.now_ms)
    assert trouble is not None
    assert trouble.sentence.startswith(
        "Broker 1 (kafka1:9092) has been down for 6 s and 5 records wait for it"
    )
    harness.hear(0, up())
    assert harness.book.trouble(harness.now_ms) is None
    fresh = Harness()
    fresh.hear(0, knows_cluster=False)
    assert fresh.book.trouble(fresh.now_ms) is None


def test_a_partition_that_the_topic_lacks_is_not_an_unknown_topic() -> None:
    harness = Harness()
    harness.hear(0, waits=(WaitRow("orders", -1, -1, NOW_MS - 6_000.0, "out_of_range"),))
    (notice,) = harness.book.notices(0, harness.now_ms)
    assert notice == (
        "oldest held record 6 s, topic orders, it names a partition that the topic does not have. "
        "Send to a partition that the topic has, or give it more of them."
    )


def test_with_nothing_held_no_oldest_record_is_shown(caplog: pytest.LogCaptureFixture) -> None:
    """The worker's report is up to a second old, the count of held records is of now."""
    harness = Harness()
    harness.hear(0, waits=(WaitRow("orders", 2, 1, NOW_MS - 8_000.0, "queued"),))
    (notice,) = harness.book.notices(0, harness.now_ms)
    assert notice.startswith("oldest held record 8 s, orders-2, queued for broker 1.")
    assert harness.book.status(0, 5, harness.now_ms)["oldest_held"]["seconds"] == 8.0
    harness.held = 0
    assert harness.book.notices(0, harness.now_ms) == []
    assert harness.book.status(0, 5, harness.now_ms)["oldest_held"] is None
    with caplog.at_level(logging.INFO):
        harness.tick(1_000.0)
    assert caplog.messages[-1] == "No record waits for long any more."


def test_reports_from_before_a_stop_are_not_judged_after_it(caplog: pytest.LogCaptureFixture) -> None:
    """After SIGCONT the log named a record that the workers had delivered long ago."""
    harness = Harness()
    with caplog.at_level(logging.INFO):
        harness.hear(0, up(), waits=(WaitRow("orders", 1, 1, NOW_MS - 100.0, "unanswered"),))
        harness.now_ms += 40_000.0
        harness.book.distrust(harness.now_ms + 2_000.0)
        harness.tick()
        assert harness.book.notices(0, harness.now_ms) == []
        harness.hear(0, up(), waits=(WaitRow("orders", 1, 1, harness.now_ms - 100.0, "unanswered"),))
        harness.tick(2_000.0)
        assert caplog.messages == []
        harness.tick(5_000.0)
    assert caplog.messages[0].startswith("Oldest held record 7 s, orders-1, broker 1 has not answered yet.")


def test_the_trouble_of_a_broker_names_it_once() -> None:
    harness = Harness()
    error = "Cannot connect to kafka1:9092 (id 1): Connection refused."
    row = BrokerRow(1, "down", NOW_MS - 7_000.0, error, held_records=9, oldest_held_ms=NOW_MS - 8_000.0)
    harness.hear(0, row, waits=(WaitRow("orders", 1, 1, NOW_MS - 8_000.0, "broker", error),))
    trouble = harness.book.trouble(harness.now_ms)
    assert trouble is not None
    assert trouble.sentence == (
        "Broker 1 (kafka1:9092) has been down for 7 s and 9 records wait for it; oldest held record 8 s, orders-1: "
        "Cannot connect to kafka1:9092 (id 1): Connection refused."
    )
    assert list(map(str, trouble.notes)) == [
        "Broker 1 (kafka1:9092) has been down for 7 s and 9 records wait for it.",
        "Oldest held record 8 s, orders-1, broker 1 down: Cannot connect to kafka1:9092 (id 1): Connection refused.",
    ], "each part is understood alone"


def test_letters_that_the_spool_does_not_take_are_a_notice_with_the_cause() -> None:
    harness = Harness()
    reason = "the dead letter spool /letters cannot be written (No space left on device)"
    harness.hear(0, letters=(LettersRow(2, NOW_MS - 9_000.0, reason),))
    harness.hear(1, letters=(LettersRow(1, NOW_MS - 4_000.0, reason),))
    assert harness.book.notices(0, harness.now_ms) == [
        f"dead letters of 3 submissions wait for 9 s: {reason}. "
        "Make room there or fix its permissions, raise dead_letters.max_bytes, or run `kafka-sidecar replay`."
    ]
    assert harness.book.is_eventful, "its age grows"
    assert harness.book.trouble(harness.now_ms) is None, "records are accepted and delivered"


def test_a_throttle_is_said_when_it_begins(caplog: pytest.LogCaptureFixture) -> None:
    harness = Harness()
    for _ in range(30):
        harness.hear(0, BrokerRow(1, "up", NOW_MS, throttle_ms=700), after_ms=1_000.0)
    (line,) = caplog.records
    assert "Broker 1 throttles this daemon: it asked for 700 ms" in line.getMessage()
    assert "broker 1 throttles: 700 ms" in harness.book.notices(0, harness.now_ms)[0]


def test_without_reports_a_broker_is_known_and_one_of_a_cluster_out_of_reach_is_down(
    caplog: pytest.LogCaptureFixture,
) -> None:
    book = BrokerBook()
    book.tick(NODES, NOW_MS, "", NOW_MS)
    assert book.state_of(1) == "known"
    book.tick(NODES, NOW_MS, "Kafka is not reachable.", NOW_MS)
    assert book.state_of(1) == "down"
    assert not caplog.records, "the cluster's own line says it, once for all brokers"
    assert book.to_list(NOW_MS, 5)[0]["last_error"] == "Kafka is not reachable."


def test_status_shows_so_many_of_each() -> None:
    harness = Harness()
    names = [f"n{number}" for number in range(SHOWN_MAX + 1)]
    for worker in (0, 1):
        harness.hear(
            worker,
            topics=tuple(ShareRow(name, 0.01, 1) for name in names),
            clients=tuple(ShareRow(name, 0.01, 1) for name in names),
            holds=tuple(HoldRow(name, "pool", "orders", NOW_MS + worker, 1) for name in names),
        )
    shown = harness.book.status(0, 5, harness.now_ms)
    rows = (shown["pool"]["by_topic"], shown["pool"]["by_client"], shown["holds"])
    assert [len(each) for each in rows] == [SHOWN_MAX] * 3
    assert rows[0][0]["pages"] == 2, "both workers' part"


def test_a_topic_is_not_called_unknown_before_the_cluster_has_said_so() -> None:
    """The broker that was asked hangs: the topic may well be there."""
    harness = Harness()
    waits = (WaitRow("orders", -1, -1, NOW_MS - 6_000.0, "unknown_topic"),)
    harness.answered_ms = NOW_MS - 7_000.0
    harness.hear(-1, BrokerRow(2, "silent", NOW_MS - 6_000.0, in_flight=1))
    harness.hear(0, waits=waits)
    trouble = harness.book.trouble(harness.now_ms)
    assert trouble is not None
    assert trouble.sentence == (
        "Oldest held record 6 s, topic orders, the cluster's metadata has not come since: broker 2 silent."
    )
    assert harness.book.notices(0, harness.now_ms) == []
    harness.answered_ms = NOW_MS
    harness.tick()
    assert harness.book.trouble(harness.now_ms) is None
    assert "not in the cluster's metadata. Create the topic" in harness.book.notices(0, harness.now_ms)[0]


def test_a_broker_that_waits_for_a_dead_one_is_not_blamed(caplog: pytest.LogCaptureFixture) -> None:
    """With acks = all the living ones answer when the dead one has left the replicas in sync. All three were silent,
    each with advice for itself.
    """
    harness = Harness()
    harness.nodes[3] = Node(3, "kafka3", 9092)
    rows = [
        BrokerRow(each, "silent", NOW_MS, in_flight=3, held_records=9, oldest_held_ms=NOW_MS)
        for each in (2, 3)
    ]
    wait = WaitRow("orders", 1, 2, NOW_MS, "broker")
    harness.hear(0, harness.down(), *rows, waits=(wait,))
    harness.tick(6_000.0)
    assert [line.split(". ")[-1] for line in caplog.messages[1:]] == 2 * [
        "It may wait for broker 1, which is down."
    ]
    trouble = harness.book.trouble(harness.now_ms)
    assert trouble is not None
    assert trouble.sentence.startswith(
        "Broker 1 (kafka1:9092) has been down for 6 s and 5 records wait for it; "
        "Broker 2 (kafka2:9092) has been silent for 6 s and 9 records wait for it, it may wait for broker 1, which is "
        "down; Broker 3"
    )
    assert trouble.advice == "Look at broker 1."
    shown = harness.book.status(0, 5, harness.now_ms)["brokers"]
    assert [each["last_error"].split(". ")[-1] for each in shown[1:]] == 2 * [
        "It may wait for broker 1, which is down."
    ]

    hangs = Harness()
    hangs.hear(0, hangs.down())
    late_ms = NOW_MS + IN_SYNC_MS
    hangs.hear(0, hangs.down(), BrokerRow(2, "silent", late_ms, in_flight=1), after_ms=IN_SYNC_MS + 6_000.0)
    assert hangs.book.brokers.blamed(2) is None, "by then the dead one has left the replicas in sync"
    assert caplog.messages[-1].endswith("Look at its process, its disk and its log.")


def test_batches_of_a_dead_worker_are_not_reported_as_refused(caplog: pytest.LogCaptureFixture) -> None:
    harness = Harness()
    died = "the death of the worker that had sent it"
    harness.hear(0, up(), waits=(WaitRow("orders", 0, 1, NOW_MS - 6_000.0, "adopted", died),))
    assert harness.book.trouble(harness.now_ms) is None, "Kafka is well"
    (notice,) = harness.book.notices(0, harness.now_ms)
    assert notice == (
        "oldest held record 6 s, orders-0, to be sent again to broker 1 after the death of the worker that had sent "
        "it. Nothing to do: they are sent again once the broker has said what it has of them."
    )
    assert "refuses" not in caplog.messages[-1]


def test_a_broker_that_is_up_for_others_is_being_connected_to() -> None:
    """It said "broker 3 up", and to look at that broker."""
    harness = Harness()
    harness.hear(1, up())
    harness.hear(0, waits=(WaitRow("orders", 0, 1, NOW_MS - 6_000.0, "broker"),))
    trouble = harness.book.trouble(harness.now_ms)
    assert trouble is not None
    assert trouble.sentence == "Oldest held record 6 s, orders-0, a worker is connecting to broker 1."
    assert trouble.advice == "If that lasts, look at the network to it."


def test_an_answer_that_was_lost_is_no_refusal() -> None:
    harness = Harness()
    error = "The connection to broker 1 ended before it answered: no answer within request.timeout.ms=30000"
    harness.hear(0, up(), waits=(WaitRow("orders", 0, 1, NOW_MS - 31_000.0, "lost", error),))
    trouble = harness.book.trouble(harness.now_ms)
    assert trouble is not None
    assert trouble.sentence == f"Oldest held record 31 s, orders-0, to be sent again: {error}."


def test_a_name_that_no_dns_knows_is_corrected_where_it_comes_from(caplog: pytest.LogCaptureFixture) -> None:
    harness = Harness()
    error = "The name kafka1 cannot be resolved (No such name): correct advertised.listeners of broker 1."
    row = harness.down()._replace(last_error=error)
    harness.hear(0, row, waits=(WaitRow("orders", 0, 1, NOW_MS, "broker", error),))
    harness.tick(6_000.0)
    trouble = harness.book.trouble(harness.now_ms)
    assert trouble is not None
    assert "correct advertised.listeners of broker 1" in trouble.sentence
    assert trouble.advice == "What waits is delivered once the broker can be connected to."
    assert "Look at" not in caplog.messages[0]


def test_each_cause_of_waiting_has_words_and_advice() -> None:
    for cause in WaitCause:
        harness = Harness()
        harness.hear(0, up(), waits=(WaitRow("orders", 0, 1, NOW_MS - 9_000.0, str(cause), "An error."),))
        shown = harness.book.status(0, 5, harness.now_ms)["oldest_held"]
        assert shown["reason"] and wait_advice(cause, "").endswith(".")


def test_a_program_hears_for_what_its_topic_waits() -> None:
    harness = Harness()
    harness.hear(0, harness.down(), up(2))
    assert harness.book.why_waits("orders", [2, 2]) == ""
    assert harness.book.why_waits("orders", [2, 1]) == "broker 1 (kafka1:9092) is down: refused"
    assert harness.book.why_waits("orders", [2, -1]) == "partitions without a leader: 1 of 2"
    harness.hear(
        0, up(2), waits=(WaitRow("orders", 0, 2, NOW_MS - 9_000.0, "refused", "NOT_ENOUGH_REPLICAS"),)
    )
    assert harness.book.why_waits("orders", [2]) == (
        "oldest held record 9 s, orders-0, broker 2 refuses: NOT_ENOUGH_REPLICAS"
    )
    assert harness.book.why_waits("billing", [2]) == ""
