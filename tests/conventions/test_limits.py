"""docs/limits.md and the section "At the edges" of docs/behaviour.md say what the code and the tests say."""

from __future__ import annotations

import importlib
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import NamedTuple

import pytest

from sidecar.config.settings import SETTINGS

ROOT = Path(__file__).resolve().parents[2]
UNITS = {
    "": 1,
    "B": 1,
    "KiB": 2**10,
    "MiB": 2**20,
    "GiB": 2**30,
    "ms": 1,
    "s": 1_000,
    "min": 60_000,
    "h": 3_600_000,
    "%": 0.01,
}
"""Times are compared in milliseconds, sizes in bytes."""


NO_BOUND_OF_THE_PRODUCT = {
    # Widths of fields and formats; the code beside them says what does not fit.
    "ARRAY_BYTES_MAX", "INT32_MAX", "INT64_MAX", "INT_MAX", "LONG_MAX", "TIMEOUT_MS_MAX", "TIMESTAMP_MS_MAX",
    "ID_MAX",
    "COUNTER_ROWS_MAX", "PRODUCE_VERSION_MAX", "SENDMSG_BUFFERS_MAX",
    # How much is done at a time, kept for later use, or shown: more waits, is made anew, or is counted.
    "ACK_BYTES_MAX", "COPIED_BYTES_MAX", "EVENTS_PER_TURN_MAX", "BYTES_PER_TURN_MAX", "NAMED_MAX", "PACKERS_KEPT_MAX",
    "PACKER_KEPT_BYTES_MAX", "READ_TRIES_MAX", "RECEIVES_MAX", "SYSTEM_UID_MAX", "ACKS_WAIT_MS_MAX",
    "ABORTS_WAIT_MS_MAX", "KEPT_KEYS_MAX", "KEPT_BYTES_MAX", "PARTITIONS_KEPT_MAX",
    "OFFSETS_BYTES_MAX",
}  # fmt: skip


class Row(NamedTuple):
    bound: str
    value: str
    set_by: str
    behaviour: str
    tests: tuple[str, ...]


def _rows(path: Path, cells: int) -> Iterator[list[str]]:
    for line in path.read_text().splitlines():
        found = [cell.strip() for cell in line.strip().strip("|").split(" | ")]
        if line.startswith("| ") and len(found) == cells and not found[0].startswith("bound"):
            yield found


def limits() -> list[Row]:
    rows = _rows(ROOT / "docs" / "limits.md", 5)
    return [Row(*cells[:4], tuple(re.findall(r"`(test_\w+)`", cells[4]))) for cells in rows]


def edges() -> list[tuple[str, tuple[str, ...]]]:
    """Each item of the section: a guarantee, then the names of its tests."""
    text = (ROOT / "docs" / "behaviour.md").read_text()
    section = text.split("## At the edges", 1)[1].split("\n## ", 1)[0]
    assert not re.search(r"^\|", section, re.MULTILINE), (
        "write '- guarantee. `test_name`', not a row of a table"
    )
    items = re.split(r"^- ", section, flags=re.MULTILINE)[1:]
    found = [
        re.split(r"(?=`test_\w+`)", " ".join(item.split("\n\n")[0].split()), maxsplit=1) for item in items
    ]
    return [(holds.strip(), tuple(re.findall(r"`(test_\w+)`", "".join(rest)))) for holds, *rest in found]


@cache
def names_of_tests() -> frozenset[str]:
    return frozenset(
        name
        for path in (ROOT / "tests").rglob("test_*.py")
        for name in re.findall(r"^ *(?:async )?def (test_\w+)\(", path.read_text(), re.MULTILINE)
    )


def _amount(text: str) -> float:
    found = re.match(r"([\d,]+(?:\.\d+)?)\s*(B|KiB|MiB|GiB|ms|s|min|h|%)?(?![\w.])", text)
    assert found, (
        f"{text!r} does not begin with a number and a unit ({', '.join(filter(None, UNITS))} or none)"
    )
    return float(found[1].replace(",", "")) * UNITS[found[2] or ""]


def _set_by(name: str) -> float:
    """The bound in the code, times in milliseconds."""
    for setting in SETTINGS:
        if setting.name == name:
            value, spelled = setting.default, name.replace(".", "_")
            break
    else:
        module, _, spelled = name.rpartition(".")
        value = getattr(importlib.import_module(module), spelled)
    assert isinstance(value, int | float), f"{name} is {value!r}, no number"
    return value * 1_000 if spelled.lower().endswith(("_s", "_seconds")) else value


@pytest.mark.parametrize("row", limits(), ids=lambda row: row.bound)
def test_the_limit_is_what_the_code_has(row: Row) -> None:
    assert row.behaviour
    names = re.findall(r"`([\w.]+)`", row.set_by)
    assert names, f"{row.bound}: name the setting or the constant in backticks"
    assert _amount(row.value) == pytest.approx(_set_by(names[0])), f"{row.bound}: {names[0]}"


@pytest.mark.parametrize("row", limits(), ids=lambda row: row.bound)
def test_the_limit_has_a_test(row: Row) -> None:
    assert row.tests, f"{row.bound} names no test"
    gone = set(row.tests) - names_of_tests()
    assert not gone, f"{row.bound} names tests that do not exist: {gone}"


@pytest.mark.parametrize("edge", edges(), ids=lambda edge: edge[0][:60])
def test_each_edge_has_a_test(edge: tuple[str, tuple[str, ...]]) -> None:
    holds, tests = edge
    assert tests, f"{holds!r} names no test"
    gone = set(tests) - names_of_tests()
    assert not gone, f"{holds!r} names tests that do not exist: {gone}"


def test_the_pages_have_rows_and_none_twice() -> None:
    assert limits() and edges()
    bounds = [row.bound for row in limits()]
    assert len(bounds) == len(set(bounds)), {bound for bound in bounds if bounds.count(bound) > 1}
    constants = [row.set_by for row in limits() if row.set_by.startswith(("`sidecar.", "`client_stub."))]
    assert len(constants) == len(set(constants)), {each for each in constants if constants.count(each) > 1}


def test_every_bound_in_the_code_is_on_the_page() -> None:
    """By name: a bound that stands in two modules (stub and daemon) has one row."""
    named = {name.rpartition(".")[2] for row in limits() for name in re.findall(r"`([\w.]+)`", row.set_by)}
    found = {
        name: str(path.relative_to(ROOT))
        for package in ("sidecar", "client_stub")
        for path in (ROOT / package).rglob("*.py")
        if not {"bench", "chaos", "demo", "testing"} & set(path.parts)
        for name in re.findall(r"^([A-Z][A-Z0-9_]*_MAX)\b(?:: [^=]*)? = ", path.read_text(), re.MULTILINE)
    }
    gone = NO_BOUND_OF_THE_PRODUCT - found.keys()
    assert not gone, f"strike from NO_BOUND_OF_THE_PRODUCT: {gone}"
    missing = {name: path for name, path in found.items() if name not in named | NO_BOUND_OF_THE_PRODUCT}
    assert not missing, f"no row in docs/limits.md, nor a name in NO_BOUND_OF_THE_PRODUCT: {missing}"
