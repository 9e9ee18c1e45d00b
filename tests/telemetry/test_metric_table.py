"""Goal: what /metrics serves is what the table says, and what Prometheus' own checker accepts.

The rules of ``promtool check metrics`` that concern us are a test of their own: not every machine has promtool.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from types import FrameType
from typing import Any

import pytest
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.metrics_core import Metric
from prometheus_client.parser import text_string_to_metric_families

from sidecar.common.condition import HoldCause
from sidecar.controller.status.condition_book import SHOWN_MAX
from sidecar.controller.status.failure_book import TOPICS_MAX
from sidecar.shm.segment import Segment
from sidecar.telemetry.collector import SegmentCollector
from sidecar.telemetry.metric_table import METRICS
from sidecar.telemetry.state_rows import STATE_ROWS
from tests.telemetry.promtool import needs_promtool, promtool
from tests.telemetry.test_exporter import STATUS, get, request, segment

__all__ = ["segment"]

FOREIGN_UNITS = re.compile(r"_(ms|us|ns|milliseconds|minutes|hours|kb|mb|kilobytes|percent|celsius)(_|$)")
TYPE_WORDS = ("gauge", "counter", "summary", "histogram", "metric")
ABBREVIATIONS = re.compile(r"_(s|sec|secs|b|m|h|d)(_total)?$")


def faults(families: Iterator[Metric]) -> list[str]:
    """Rules of promtool's linter (util/promlint): help, suffixes, base units, type words, letters of labels."""
    found = []
    for family in families:
        name = family.name
        if not family.documentation:
            found.append(f"{name}: no help")
        if family.type == "counter" and any(not each.name.endswith("_total") for each in family.samples):
            found.append(f"{name}: a counter without _total")
        if family.type != "counter" and name.endswith("_total"):
            found.append(f"{name}: _total, and no counter")
        if family.type not in ("histogram", "summary") and name.endswith(("_count", "_sum", "_bucket")):
            found.append(f"{name}: a suffix of histograms")
        if FOREIGN_UNITS.search(name) or ABBREVIATIONS.search(name):
            found.append(f"{name}: no base unit")
        if any(word in name.split("_") for word in TYPE_WORDS) or not re.fullmatch("[a-z_:]+", name):
            found.append(f"{name}: a word of a type, or capitals")
        for label in {label for each in family.samples for label in each.labels}:
            if not re.fullmatch("[a-z_]+", label) or label in ("instance", "job"):
                found.append(f"{name}: label {label}")
    return found


def scraped(made: Segment) -> str:
    (answer,) = get(made, [request("/metrics")])
    return answer.split("\r\n\r\n", 1)[1]


def test_our_rules_find_nothing(segment: Segment) -> None:
    assert not faults(text_string_to_metric_families(scraped(segment)))


@needs_promtool
def test_promtool_finds_nothing(segment: Segment) -> None:
    assert promtool(["check", "metrics"], scraped(segment)) == ""


@pytest.mark.parametrize(
    "text",
    [
        "# TYPE a_total gauge\n# HELP a_total Text.\na_total 1\n",
        "# TYPE a_ms gauge\n# HELP a_ms Text.\na_ms 1\n",
        "# TYPE a gauge\na 1\n",
        '# TYPE a gauge\n# HELP a Text.\na{instance="x"} 1\n',
        "# TYPE a_count gauge\n# HELP a_count Text.\na_count 1\n",
        "# TYPE a_gauge gauge\n# HELP a_gauge Text.\na_gauge 1\n",
    ],
)
def test_the_rules_can_fail(text: str) -> None:
    assert len(faults(text_string_to_metric_families(text))) == 1


def test_every_family_is_in_the_table(segment: Segment) -> None:
    families = {family.name: family for family in text_string_to_metric_families(scraped(segment))}
    assert families.keys() == {row.name.removesuffix("_total") for row in METRICS}
    for row in METRICS:
        family = families[row.name.removesuffix("_total")]
        assert (family.type, family.documentation) == (row.kind, row.help)
        for sample in family.samples:
            assert sample.labels.keys() - {"le"} == set(row.labels)


def test_milliseconds_are_shown_as_seconds(segment: Segment) -> None:
    segment.slot(1).counters.set("produce_throttle_ms_total", 1_500)
    segment.slot(1).counters.set("produce_throttle_max_ms", 30)
    text = scraped(segment)
    assert 'kafka_sidecar_produce_throttle_seconds_total{slot="1"} 1.5' in text
    assert 'kafka_sidecar_produce_throttle_max_seconds{slot="1"} 0.03' in text


def test_each_process_is_told_apart(segment: Segment, monkeypatch: pytest.MonkeyPatch) -> None:
    mine = os.getpid()
    workers: list[dict[str, Any]] = [{**STATUS["workers"][0], "pid": mine, "slot": 3}]
    monkeypatch.setitem(STATUS, "pid", mine)
    monkeypatch.setitem(STATUS, "workers", workers)
    monkeypatch.setitem(STATUS, "standby", 2**22 - 1)  # a pid that is not there
    families = {family.name: family for family in text_string_to_metric_families(scraped(segment))}
    for name in ("cpu_seconds", "resident_memory_bytes", "open_fds", "max_fds", "start_time_seconds"):
        samples = families[f"process_{name}"].samples
        assert [(each.labels["role"], each.labels["worker"]) for each in samples] == [
            ("controller", ""),
            ("worker", "0"),
        ]
        assert all(each.value > 0 for each in samples)
    resident = families["process_resident_memory_bytes"].samples[0].value
    in_pages = int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    assert resident == pytest.approx(in_pages, rel=0.5)
    (info,) = families["kafka_sidecar_worker_info"].samples
    assert info.labels == {"worker": "0", "slot": "3"}


def test_of_a_broker_without_a_connection_nobody_says_that_it_is_up(segment: Segment) -> None:
    text = scraped(segment)
    assert 'kafka_sidecar_broker_up{broker="1"} 1.0' in text
    assert 'kafka_sidecar_broker_up{broker="2"} 0.0' in text
    assert 'kafka_sidecar_broker_up{broker="3"}' not in text


def test_pool_and_what_is_saved(segment: Segment) -> None:
    segment.slot(0).counters.set("broker_connections", 1)
    text = scraped(segment)
    assert "kafka_sidecar_pool_bytes 262144.0" in text
    assert "kafka_sidecar_pool_used_bytes 12288.0" in text
    assert 'kafka_sidecar_pool_topic_bytes{topic="orders"} 8192.0' in text
    assert text.count("kafka_sidecar_pool_client_bytes{") == 1, "two names that are shown alike"
    assert 'kafka_sidecar_pool_client_bytes{client="w?b"} 12288.0' in text
    assert "kafka_sidecar_connections_saved 5.0" in text, "six clients, one broker up, one connection"


def test_the_reasons_of_held_streams_are_all_in_the_help() -> None:
    (row,) = [each for each in STATE_ROWS if each.name == "streams_held"]
    assert row.help == f"Streams whose stub waits, by reason: {', '.join(HoldCause)}."


def test_the_work_of_a_scrape_is_that_of_its_series(segment: Segment) -> None:
    """A scrape of 1,000 topics and four workers may take 50 ms, which `kafka-sidecar bench --only scrape` shows. A test
    cannot claim a time, but the two counts that make it: the series, of which few are of a topic, and the calls for
    each.
    """
    for slot in (2, 3):
        segment.prepare_slot(slot)
        segment.slot(slot).claim(incarnation=slot + 1, pid=os.getpid())
    topics = [
        {"topic": f"t{number}", "pages": 1, "share": 0.01, "share_full": False} for number in range(SHOWN_MAX)
    ]
    clients = [{**row, "client": row["topic"]} for row in topics]
    status = {**STATUS, "pool": {**STATUS["pool"], "by_topic": topics, "by_client": clients}}
    failures = [((f"t{number}", "TIMED_OUT"), 1.0) for number in range(TOPICS_MAX + 1)]
    registry = CollectorRegistry()
    registry.register(SegmentCollector(segment, lambda: status, lambda: failures))
    generate_latest(registry)
    calls = 0

    def count(frame: FrameType, event: str, argument: Any) -> None:
        nonlocal calls
        calls += event == "call"

    sys.setprofile(count)
    try:
        shown = generate_latest(registry).decode()
    finally:
        sys.setprofile(None)
    series = sum(not line.startswith("#") for line in shown.splitlines())
    print(f"{series} series, {calls / series:.1f} calls for each")
    assert series <= 700
    assert calls <= 16 * series, "most of them are those of prometheus_client"
