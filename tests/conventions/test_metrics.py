"""Goal: a metric that an operator sees is true: somebody writes it, and docs/metrics.md says what it means."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest

from sidecar.shm.counters import COUNTER_ROWS
from sidecar.telemetry.metric_table import METRICS, MetricRow
from sidecar.tools.pages.metrics import reference_markdown

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "metrics.md"
WRITERS = ("worker", "shm", "controller")
"""The rooms whose processes write counters; the others only show them."""
DISTRIBUTIONS = ("kafka_sidecar_daemon", "kafka_sidecar_tools")
"""Names of wheels."""


def written_rows(text: str) -> Iterator[str]:
    """Words that stand where a counter is written: an argument of inc() or set(), a key of what add() is given."""
    for node in ast.walk(ast.parse(text)):
        values: Iterable[ast.expr | None] = ()
        match node:
            case ast.Call(func=ast.Attribute(attr="inc" | "set"), args=[first, *_]):
                values = [first]
            case ast.Dict(keys=keys):
                values = keys
            case ast.Subscript(slice=index, ctx=ast.Store()):
                values = [index]
            case ast.Assign(targets=[ast.Tuple()], value=ast.GeneratorExp(generators=[each])):
                values = (
                    each.iter.elts if isinstance(each.iter, ast.Tuple) else ()
                )  # places written word by word
        for value in values:
            if isinstance(value, ast.Constant) and isinstance(value.value, str):
                yield value.value


def test_every_counter_row_has_a_writer() -> None:
    written = {
        row
        for room in WRITERS
        for path in (ROOT / "sidecar" / room).rglob("*.py")
        for row in written_rows(path.read_text())
    }
    never = [row.name for row in COUNTER_ROWS if row.name not in written]
    assert not never, f"nobody in {WRITERS} counts these, by Counters.inc() or in Gauges: {never}"


@pytest.mark.parametrize(
    ("text", "rows"),
    [
        ('counters.inc("a_total")', ["a_total"]),
        ('counters.set("a", 5)', ["a"]),
        ('counters.add({"a": 1, "b": 2})', ["a", "b"]),
        ('corrections["a"] = 4', ["a"]),
        ('counters.get("a_total")', []),
        ('SHOWN = (("a_total", "a"),)', []),
        ('values["a"] - 1', []),
    ],
)
def test_the_test_can_fail(text: str, rows: list[str]) -> None:
    assert list(written_rows(text)) == rows


@pytest.mark.parametrize("row", METRICS, ids=lambda row: row.name)
def test_a_row_says_what_it_counts(row: MetricRow) -> None:
    assert row.name.endswith("_total") == (row.kind == "counter"), "Prometheus: counters end in _total"
    assert row.unit, "in what it counts, in the plural"
    assert all(text.endswith(".") for text in (row.help, row.worry) if text), "help and worry are sentences"
    assert "|" not in row.help + row.worry, "it is a cell of a table"
    assert row.unit not in ("milliseconds", "kilobytes", "percent"), "Prometheus: base units"
    assert ("_seconds" in row.name) == (row.unit == "seconds")
    assert ("_bytes" in row.name) == (row.unit == "bytes")


def test_names_are_unique() -> None:
    assert len({row.name for row in METRICS}) == len(METRICS)


def test_the_page_is_what_the_tables_say() -> None:
    assert PAGE.read_text() == reference_markdown(), (
        "print it again: .demo/venv/bin/python -m sidecar.tools.pages.metrics > docs/metrics.md"
    )


def unknown_metrics(text: str) -> Iterator[str]:
    known = {row.name for row in METRICS}
    # prometheus_client names the family of a counter without _total.
    known |= {name.removesuffix("_total") for name in known}
    for name in re.findall(r"\bkafka_sidecar_[a-z_]*[a-z]\b", text):
        if not known & {name, re.sub(r"_(?:bucket|sum|count)$", "", name)} and name not in DISTRIBUTIONS:
            yield name


def test_metrics_named_elsewhere_exist() -> None:
    """In the docs, in the files for Prometheus, in tests: a name that does not exist is read as 0 by everybody."""
    pages = [*(ROOT / "docs").rglob("*.md"), *ROOT.glob("*.md")]
    pages += [path for path in (ROOT / "deploy").rglob("*") if path.suffix in {".yml", ".yaml", ".json"}]
    pages += [path for path in (ROOT / "tests").rglob("*.py") if path != Path(__file__)]
    unknown = {
        f"{path.relative_to(ROOT)}: {name}" for path in pages for name in unknown_metrics(path.read_text())
    }
    assert not unknown, f"no such metric: {unknown}"


def test_a_metric_that_does_not_exist_is_found() -> None:
    text = (
        "rate(kafka_sidecar_no_such_total[5m]) kafka_sidecar_no_such_thing kafka_sidecar_queue_seconds_bucket"
    )
    assert list(unknown_metrics(text)) == ["kafka_sidecar_no_such_total", "kafka_sidecar_no_such_thing"]
