"""Goal: what the bench prints is what it measured."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from sidecar.tools.bench.latency import percentile
from sidecar.tools.bench.measurement import Results, short
from sidecar.tools.bench.report import to_markdown, write_json
from sidecar.tools.bench.workload import Workload


def results() -> Results:
    found = Results()
    found.add("one caller", "rate", "ours", "1/s", [300.0, 100.0, 200.0])
    found.add("one caller", "rate", "theirs", "1/s", [50.0, 40.0, 90.0])
    return found


def test_the_median_of_the_runs_counts_and_the_spread_is_shown() -> None:
    found = results().find("one caller", "rate", "ours")
    assert found is not None
    assert found.median == 200.0
    assert found.spread == "100-300"


@pytest.mark.parametrize(
    ("promise", "reached"),
    [
        ({"at_least": 4.0}, True),
        ({"at_least": 4.1}, False),
        ({"at_most": 4.0}, True),
        ({"at_most": 3.9}, False),
    ],
)
def test_a_promise_is_judged_by_medians(promise: dict[str, float], reached: bool) -> None:
    found = results()
    found.compare("rate", ("one caller", "rate", "ours"), ("one caller", "rate", "theirs"), **promise)
    assert found.ratios[0].value == 4.0
    assert found.ratios[0].is_reached is reached
    assert ("reached" if reached else "**missed**") in to_markdown(found)


def test_nothing_is_compared_that_was_not_measured() -> None:
    found = results()
    found.compare("rate", ("one caller", "rate", "ours"), ("one caller", "rate", "nobody"), at_least=1.0)
    assert found.ratios == []


def test_json_has_every_run(tmp_path: Path) -> None:
    write_json(tmp_path / "b.json", results())
    rows = json.loads((tmp_path / "b.json").read_text())["measurements"]
    assert [row["values"] for row in rows] == [[300.0, 100.0, 200.0], [50.0, 40.0, 90.0]]


def test_percentiles_are_nearest_rank() -> None:
    values = [float(value) for value in range(1, 101)]
    assert [percentile(values, share) for share in (50, 99, 99.9)] == [50.0, 99.0, 100.0]
    assert percentile([7.0], 50) == 7.0


@pytest.mark.parametrize(
    ("value", "text"), [(1_243_499.0, "1,240,000"), (0.3721, "0.372"), (1000.0, "1,000"), (12.34, "12.3")]
)
def test_three_digits(value: float, text: str) -> None:
    assert short(value) == text


@pytest.mark.parametrize("value_bytes", [0, 10, 100, 1_000_000])
def test_records_have_the_size_that_is_said(value_bytes: int) -> None:
    workload = Workload("t", 500, value_bytes=value_bytes)
    records = workload.make()
    assert {(len(key), len(value)) for key, value in records} == {(16, value_bytes)}
    assert len({key for key, _ in records}) == len(records)
    assert all(workload.batches())
