"""Settings by topic: which pattern counts, and what the accumulator and the sender make of it."""

from __future__ import annotations

from typing import Any

import pytest

from sidecar.producer.lanes import IDEMPOTENT_LANE, PLAIN_LANE
from sidecar.producer.topic_settings import TopicRules
from tests.configs import producer_config

from .harness import Core, payloads_of, snapshot_of


def rules(patterns: dict[str, dict[str, Any]], **settings: Any) -> TopicRules:
    return TopicRules(producer_config(**settings), patterns)


class Topics(Core):
    """A core with patterns; every topic of ``leaders_of`` has its partitions on those brokers."""

    def __init__(
        self, patterns: dict[str, dict[str, Any]], leaders_of: dict[str, tuple[int, ...]], **settings: Any
    ) -> None:
        super().__init__(rules=patterns, **settings)
        self.snapshot = snapshot_of(leaders_of)

    def put(self, topic: str, payload: str) -> None:
        self.lane = self.rules.of(topic).lane
        self.append(payload, topic=topic)


def test_the_first_pattern_of_the_file_counts_alone() -> None:
    found = rules(
        {"audit-eu": {"linger.ms": 1}, "audit-*": {"linger.ms": 2, "acks": 1}, "*": {"batch.size": 9}}
    )
    assert (found.of("audit-eu").linger_ms, found.of("audit-eu").acks) == (1, -1)
    assert (found.of("audit-us").linger_ms, found.of("audit-us").acks) == (2, 1)
    assert (found.of("other").linger_ms, found.of("other").batch_size) == (5.0, 9)
    assert found.of("audit-us") is found.of("audit-us")


def test_globs_know_case_and_ranges() -> None:
    found = rules({"a?c": {"linger.ms": 1}, "x[0-3]": {"linger.ms": 2}})
    assert [found.of(topic).linger_ms for topic in ("abc", "Abc", "abbc", "x3", "x4")] == [
        1,
        5.0,
        5.0,
        2,
        5.0,
    ]


@pytest.mark.parametrize(
    ("own", "settings", "lane"),
    [
        ({}, {}, IDEMPOTENT_LANE),
        ({"acks": 1}, {}, PLAIN_LANE),
        ({"acks": 0}, {}, PLAIN_LANE),
        ({"acks": -1}, {}, IDEMPOTENT_LANE),
        ({"acks": -1}, {"enable_idempotence": False, "acks": 1}, PLAIN_LANE),
    ],
)
def test_a_topic_is_idempotent_when_all_are_and_its_acks_is_all(
    own: dict[str, Any], settings: dict[str, Any], lane: int
) -> None:
    assert rules({"*": own}, **settings).of("t").lane == lane


def test_a_level_belongs_to_its_codec() -> None:
    found = rules(
        {
            "z": {"compression.type": "zstd", "compression.gzip.level": 9},
            "g": {"compression.type": "gzip", "compression.gzip.level": 9},
            "s": {"compression.type": "snappy"},
            "d": {"compression.type": "gzip"},
        },
        compression_type="lz4",
        compression_lz4_level=4,
    )
    assert [(found.of(t).compression_type, found.of(t).compression_level) for t in "zgsdx"] == [
        ("zstd", 3),
        ("gzip", 9),
        ("snappy", None),
        ("gzip", None),
        ("lz4", 4),
    ]


@pytest.mark.rule("A4")
def test_each_topic_lingers_its_own_time() -> None:
    core = Topics({"slow": {"linger.ms": 50}}, {"slow": (1,), "quick": (2,)}, linger_ms=10.0)
    core.put("slow", "s")
    core.put("quick", "q")
    assert core.poll(9.9) == []
    assert [payloads_of(request.batches) for request in core.poll(0.2)] == [["q"]]
    assert core.poll(39.0) == []
    assert [payloads_of(request.batches) for request in core.poll(1.0)] == [["s"]]


@pytest.mark.rule("A8")
def test_each_topic_has_its_own_deadline_whatever_came_before_it() -> None:
    core = Topics(
        {"short": {"delivery.timeout.ms": 100}, "long": {"delivery.timeout.ms": 10_000}},
        {"short": (1,), "long": (1,), "other": (1,)},
        delivery_timeout_ms=1_000.0,
    )
    core.links.down.add(1)
    for topic in ("long", "other", "short"):
        core.put(topic, topic)
    core.poll()
    assert core.accumulator.incomplete.next_expiry_ms == core.now_ms + 100
    told: list[list[str]] = []
    for advance_ms in (99.0, 1.0, 899.0, 1.0, 8_999.0, 1.0):
        core.poll(advance_ms)
        core.poll()
        told.append(payloads_of(core.decided))
    assert told == [
        [],
        ["short"],
        ["short"],
        ["short", "other"],
        ["short", "other"],
        ["short", "other", "long"],
    ]
    assert "delivery.timeout.ms=100)" in core.decided[0].text
    assert core.sender.is_idle


def test_a_batch_is_full_by_its_topics_size() -> None:
    core = Topics({"small": {"batch.size": 200}}, {"small": (1,), "large": (1,)}, linger_ms=1_000.0)
    for number in range(3):
        core.put("small", f"s{number}")
        core.put("large", f"l{number}")
    assert [payloads_of(request.batches) for request in core.poll()] == [["s0"]]


@pytest.mark.rule("A5")
def test_full_batches_and_small_ones_of_other_acks_take_turns() -> None:
    """One request at a time, and always a small batch that is ready: a full one waits for one of these at most."""
    core = Topics(
        {"small": {"acks": 0}, "large": {"acks": 1, "batch.size": 100}},
        {"small": (1,), "large": (1,)},
        max_in_flight_requests_per_connection=1,
    )
    sent: list[str] = []
    for number in range(6):
        core.put("large", f"large{number}")
        core.put("small", f"small{number}")
        (request,) = core.poll()
        sent += payloads_of(request.batches)
        if request.acks:
            core.acknowledge(request)
    assert [each[:5] for each in sent].count("large") > 1, sent


def test_a_request_has_one_acks_and_no_topic_starves() -> None:
    core = Topics(
        {"zero-*": {"acks": 0}, "one-*": {"acks": 1}},
        {f"{kind}-{n}": (1,) for kind in ("zero", "one", "all") for n in range(3)},
    )
    for n in range(3):
        for kind in ("zero", "one", "all"):
            core.put(f"{kind}-{n}", f"{kind}{n}")
    sent: dict[int, list[str]] = {}
    for _ in range(6):
        for request in core.poll():
            assert {batch.queue.settings.acks for batch in request.batches} == {request.acks}
            sent.setdefault(request.acks, []).extend(payloads_of(request.batches))
            if request.acks:
                core.acknowledge(request)
    assert {acks: sorted(found) for acks, found in sent.items()} == {
        0: ["zero0", "zero1", "zero2"],
        1: ["one0", "one1", "one2"],
        -1: ["all0", "all1", "all2"],
    }


def test_new_rules_hold_for_batches_that_are_open() -> None:
    """A shorter linger lets them go, and deadlines stay as they were made."""
    topics = Topics({}, {"a": (1,), "b": (1,)}, linger_ms=1_000, delivery_timeout_ms=60_000)
    topics.put("a", "1")
    topics.put("b", "2")
    assert topics.poll() == []
    batches = topics.accumulator.incomplete.oldest_first()
    new = rules(
        {"a": {"linger.ms": 3, "delivery.timeout.ms": 40_000}}, linger_ms=1_000, delivery_timeout_ms=60_000
    )
    topics.accumulator.use_rules(new, topics.now_ms)
    assert topics.sender.next_wakeup_ms == topics.now_ms + 3
    (request,) = topics.poll(3)
    assert payloads_of(request.batches)[0] == "1"
    assert [batch.deadline_ms for batch in batches] == [batches[0].created_ms + 60_000] * 2


def test_a_batch_leaves_its_line_whatever_its_topics_timeout_is_by_then() -> None:
    topics = Topics({}, {"a": (1,)}, linger_ms=1_000, delivery_timeout_ms=60_000)
    topics.put("a", "1")
    (batch,) = topics.accumulator.incomplete.oldest_first()
    topics.accumulator.use_rules(rules({"a": {"delivery.timeout.ms": 40_000}}), topics.now_ms)
    topics.accumulator.incomplete.remove(batch)
    assert not topics.accumulator.incomplete
