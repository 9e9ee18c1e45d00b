"""Goal: what the page draws: a quarter of an hour of totals, and who sends how much, from the segment alone."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from sidecar.shm.chain_table import ChainTable
from sidecar.shm.client_table import ClientTable
from sidecar.shm.counters import COUNTER_ROWS
from sidecar.shm.histograms import SlotHistograms
from sidecar.shm.segment import Segment
from sidecar.telemetry.collector import read_counters, sum_counters
from sidecar.telemetry.flows import SHOWN_MAX, TOPICS_OF_CLIENT_MAX, Flows
from sidecar.telemetry.history import (
    COLUMNS,
    INTERVAL_S,
    SAMPLES_MAX,
    History,
    column_totals,
    delivery_counts,
    quantile,
)

NONE = [0] * 18
ZERO = {row.name: 0 for row in COUNTER_ROWS}


def test_the_history_keeps_a_quarter_of_an_hour_and_no_more() -> None:
    history = History()
    assert history.to_json()["at_ms"] == []
    for number in range(SAMPLES_MAX):
        history.add(5000 * number, {**ZERO, "records_accepted_total": number}, NONE)
    shown = history.to_json()
    assert shown["at_ms"][-1] - shown["at_ms"][0] == 15 * 60_000 == 1000 * INTERVAL_S * (SAMPLES_MAX - 1)
    history.add(5000 * SAMPLES_MAX, {**ZERO, "records_accepted_total": 7}, NONE)
    shown = history.to_json()
    assert (shown["at_ms"][0], len(shown["at_ms"])) == (5000, SAMPLES_MAX)
    assert shown["columns"]["records_accepted_total"][-2:] == [SAMPLES_MAX - 1, 7]


def test_quantiles_lie_between_two_bounds() -> None:
    assert quantile(NONE, 0.5) is None
    assert quantile([100, *NONE[1:]], 0.5) == 0.0005, "half of the first bucket, which ends at 1 ms"
    assert quantile([0, 10, 0, 90, *NONE[4:]], 0.5) == pytest.approx(0.005 + 0.005 * 40 / 90, abs=1e-6)
    assert quantile([*NONE[1:], 5], 0.99) == 300, "the last bound"


def test_the_history_has_the_latency_of_what_was_delivered_since(segment: Segment) -> None:
    history = History()
    times = SlotHistograms(segment.slot(1)).delivery_times
    for milliseconds in (0, 30, 0):
        for _ in range(10 if milliseconds else 0):
            times.observe(milliseconds * 10)
        history.add(0, ZERO, delivery_counts(segment))
    latency = history.to_json()["latency"]
    assert latency["p50_seconds"] == [None, pytest.approx(0.0375, abs=0.001), None]
    assert latency["p99_seconds"] == [None, pytest.approx(0.05, abs=0.001), None]


def test_the_history_s_totals_are_those_of_the_metrics(segment: Segment) -> None:
    for slot, pid in ((0, os.getpid()), (1, 2**22 - 1)):
        segment.slot(slot).claim(incarnation=slot + 1, pid=pid)
        for number, name in enumerate(COLUMNS):
            segment.slot(slot).counters.inc(name, 10 + number)
    totals = column_totals(segment)
    assert totals == {name: sum_counters(read_counters(segment))[name] for name in COLUMNS}
    assert totals["buffer_pages_taken"] == segment.slot(0).counters.get("buffer_pages_taken"), (
        "a dead one has none"
    )


@pytest.fixture
def segment(tmp_path: Path) -> Iterator[Segment]:
    made = Segment.create(
        tmp_path / "segment", page_bytes=4096, buffer_memory_bytes=1 << 20, clients_max=256, instance_id=b"i"
    )
    for slot in (0, 1):
        made.prepare_slot(slot)
    yield made
    made.close()


def put_tail(table: ChainTable, chain_id: int, tail: int) -> None:
    table.tail_word(chain_id)[:] = tail.to_bytes(8, "little")


def test_rates_come_from_two_looks(segment: Segment) -> None:
    tables = [ChainTable(segment, slot) for slot in (0, 1)]
    chains = [table.open(0, "orders") for table in tables]
    clicks = tables[0].open(0, "clicks")
    assert clicks is not None and None not in chains
    clients = ClientTable(segment)
    web = clients.take_row(b"w" * 20, "web", 7, 0, b"s" * 16)
    billing = clients.take_row(b"b" * 20, "billing", 8, 1, b"s" * 16)
    assert web is not None and billing is not None
    web.place_stream(1, 0)
    web.place_stream(2, 1)
    billing.place_stream(1, 0)
    flows = Flows(segment)
    first = flows.sample(100.0)
    assert first["topic_count"] == first["client_count"] == 2
    assert not any("bytes_per_second" in each for each in first["topics"])

    put_tail(tables[0], 0, 6400)
    put_tail(tables[1], 0, 640)
    put_tail(tables[0], 1, 64)
    web.store_position(1, 30)
    web.store_position(2, 10)
    billing.store_position(1, 5)
    shown = flows.sample(102.0)
    assert [(each["topic"], each["bytes_per_second"], each["clients"]) for each in shown["topics"]] == [
        ("orders", 3520.0, 2),
        ("clicks", 32.0, 1),
    ]
    assert [
        (each["client"], each["pid"], each["submissions_per_second"], each["topics"])
        for each in shown["clients"]
    ] == [("web", 7, 20.0, ["orders", "clicks"]), ("billing", 8, 2.5, ["orders"])]
    stale = Flows(segment, stale_s=10.0)
    stale.sample(100.0)
    rates = ["bytes_per_second" in stale.sample(at_s)["topics"][0] for at_s in (110.0, 120.1, 122.0)]
    assert rates == [True, False, True], "the mean of a long pause says nothing of now"
    web.release()
    assert [each["client"] for each in flows.sample(103.0)["clients"]] == ["billing"]


def test_the_busiest_are_shown_and_all_are_counted(segment: Segment) -> None:
    table = ChainTable(segment, 0)
    client = ClientTable(segment).take_row(b"w" * 20, "web", 7, 0, b"s" * 16)
    assert client is not None
    for number in range(SHOWN_MAX + 1):
        table.open(0, f"topic-{number}")
        put_tail(table, number, 64 * number)
        client.place_stream(number, number)
    shown = Flows(segment).sample(1.0)
    assert (shown["topic_count"], len(shown["topics"])) == (SHOWN_MAX + 1, SHOWN_MAX)
    assert shown["topics"][0]["topic"] == f"topic-{SHOWN_MAX}"
    (web,) = shown["clients"]
    assert (web["topic_count"], len(web["topics"])) == (200, TOPICS_OF_CLIENT_MAX), "a client has 200 streams"
