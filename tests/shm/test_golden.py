"""Goal: an older version reads the bytes that this one writes. Segment and wire are those of the golden file."""

from __future__ import annotations

from pathlib import Path

from tests.shm.golden import golden


def test_bytes_and_numbers_are_those_of_the_golden_file() -> None:
    lines = Path(__file__).with_name("golden.txt").read_text().splitlines()
    expected = dict(line.split(" ", 1) for line in lines)
    found = dict(golden())
    assert {name: found.get(name) for name in expected} == expected
    # A row that is new stands for something new: a kind, a code or a field in room that was free.
    assert found.keys() == expected.keys(), (
        "add the new rows: .demo/venv/bin/python -m tests.shm.golden > tests/shm/golden.txt"
    )
