"""Goal: a number that two languages need has one value: kernel, twin, wire, segment and stub are compared by value."""

from __future__ import annotations

import re
from enum import IntEnum
from pathlib import Path

import pytest

from client_stub.contract import wire
from sidecar.shm import in_work, layout
from tests.kernel.oracle import (
    reference,
    reference_bytes,
    reference_chain,
    reference_columns,
    reference_partitioner,
    reference_records,
)

KERNEL = Path(__file__).resolve().parents[2] / "sidecar/kernel"


def constants(name: str) -> dict[str, int]:
    """Of the enums of one Cython file: they exist at compile time only."""
    found = re.findall(r"^    ([A-Z_]+) = (0x[0-9A-Fa-f]+|\d+)\b", (KERNEL / name).read_text(), re.MULTILINE)
    return {key: int(value, 0) for key, value in found}


def members(enum: type[IntEnum], prefix: str = "") -> dict[str, int]:
    return {prefix + each.name: each.value for each in enum}


WIRE = {
    **members(wire.LocalCode),
    **members(wire.Shape, "SHAPE_"),
    **members(wire.Format, "FORMAT_"),
    **members(wire.SubmitFlag),
    **{name: value for name, value in vars(wire).items() if name.startswith(("WORD_", "COLUMN"))},
    "OUTCOME_HEADER": wire.OUTCOME_HEADER_BYTES,
    "RECORDS_MAX": wire.SUBMISSION_RECORDS_MAX,
}
TWIN = {
    **{
        name: value
        for module in (reference_bytes, reference_records, reference_chain, reference_columns, reference)
        for name, value in vars(module).items()
        if isinstance(value, int) and name.isupper()
    },
    "ENTRY_HEADER": reference.ENTRY_HEADER_BYTES,
    "PAGE_HEADER": reference.PAGE_HEADER_BYTES,
    "BATCH_HEADER": reference.BATCH_HEADER_BYTES,
    "RECORDS_MAX": reference.RECORDS_PER_ENTRY_MAX,
    "TAKEN": reference.PAGE_TAKEN,
    "LINKED": reference.PAGE_LINKED,
    "INDEX_ENTRY": reference.ENTRY_INDEX_BYTES,
    "INDEX_RECORD": reference.RECORD_INDEX_BYTES,
    "COLUMNS_MAGIC": reference_columns.MAGIC,
}


@pytest.mark.parametrize("name", ["_kernel.pyx", "columns.pxi"])
def test_the_kernel_s_numbers_are_the_wire_s_and_the_twin_s(name: str) -> None:
    kernel = constants(name)
    for other in (WIRE, TWIN):
        common = kernel.keys() & other.keys()
        assert len(common) >= (1 if name == "columns.pxi" else 12), sorted(common)
        assert {each: kernel[each] for each in common} == {each: other[each] for each in common}


def test_the_twin_s_partitioners_are_the_wire_s() -> None:
    assert reference_partitioner.NAMED == wire.PARTITIONERS


def test_the_twin_s_numbers_are_the_wire_s() -> None:
    common = WIRE.keys() & TWIN.keys()
    assert {"WORD_DONE", "MALFORMED_RECORD", "SHAPE_COUNT", "WANT_INDEXES"} <= common
    assert {each: TWIN[each] for each in common} == {each: WIRE[each] for each in common}


def test_headers_have_one_form() -> None:
    assert reference._OUTCOME.format == wire.OUTCOME.format
    assert reference_chain._PAGE.format == layout.PAGE_HEADER.format
    assert reference_chain._ENTRY.size == reference.ENTRY_HEADER_BYTES
    assert reference.PAGE_HEADER_BYTES == layout.PAGE_HEADER_BYTES
    assert reference_chain.NO_ENTRY == layout.NO_ENTRY
    assert layout.TOPIC_BYTES_MAX == wire.TOPIC_BYTES_MAX
    assert in_work._NUMBER_MASK == reference_records.WORK_NUMBER
    (number,) = re.findall(r"WORK_NUMBER = \(1 << (\d+)\) - 1", (KERNEL / "_kernel.pyx").read_text())
    assert int(number) == in_work.NUMBER_BITS
