"""Goal: the table of the room names only what is there: functions of the room, and tests."""

from __future__ import annotations

from functools import reduce
from importlib import import_module
from pathlib import Path

import client_stub.zmtp

TESTS = Path(__file__).resolve().parents[2]


def test_each_row_names_a_function_and_a_test() -> None:
    rows = [line.split(" | ") for line in (client_stub.zmtp.__doc__ or "").splitlines() if " | " in line]
    sources = "".join(
        path.read_text() for folder in ("stub/zmtp", "net") for path in (TESTS / folder).glob("test_*.py")
    )
    for section, function, test in rows:
        assert section.strip()[:3] in {"26 ", "37 "}
        module, *names = function.split(".")
        assert reduce(getattr, names, import_module(f"client_stub.zmtp.{module}")), function
        assert f"def {test}(" in sources, test
    assert len(rows) >= 17
