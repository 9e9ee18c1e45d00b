"""The coverage of each room by the last ``make test``: a table, and exit status 1 if a room is under its floor.

``python -m tests.coverage_by_room`` combines what the suites and their child processes left in ``.demo/coverage``. The
figure counts lines and branches together, as coverage.py's own total does. Cython is not in it: its tracing hooks would
have to be compiled into the walks that are the product's speed. The compiled kernel is compared with its twin in pure
Python (``tests/kernel/oracle/reference.py``), and the compiled part of the stub with msgpack, ``frames.py`` and
``wire.py``.
"""

from __future__ import annotations

import json
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final, NamedTuple

FLOOR: Final = 90.0
FLOORS: Final = {
    "sidecar/tools/bench": 40.0,
    "sidecar/tools/chaos": 30.0,
    "sidecar/tools/demo": 30.0,
    "sidecar/tools/testing": 65.0,
    "sidecar/tools/pages": 40.0,
    "sidecar/kernel": 0.0,
}
"""Rooms that measure, show or test the product. Most of each runs in processes of `make bench`, `make demo` and
`kafka-sidecar chaos`, which `make test` starts in short forms or kills: their floors only keep them from falling. The
kernel's Python is an import and the words for its failure, which tests read in a copy of the tree."""
ROOT: Final = Path(__file__).resolve().parents[1]
PACKAGES: Final = ("sidecar", "client_stub")


class Room(NamedTuple):
    """``covered`` and ``least`` in per cent of lines and branches."""

    name: str
    lines: int
    covered: float
    least: float

    @property
    def is_low(self) -> bool:
        return self.covered < self.least


def room_of(path: str) -> str:
    """``sidecar/worker/rows/x.py`` -> ``sidecar/worker``; a module right under ``sidecar`` is in ``sidecar``. The
    stub is one room here, and so is each tool.
    """
    parts = Path(path).parent.parts
    if parts[0] == "client_stub":
        return parts[0]
    return "/".join(parts[: 3 if parts[1:2] == ("tools",) else 2])


def rooms(files: Mapping[str, Any]) -> list[Room]:
    """``files``: of coverage.py's JSON report. Rooms in the order of their names."""
    found: dict[str, list[int]] = {}
    for path, each in files.items():
        summary = each["summary"]
        total = found.setdefault(room_of(path), [0, 0, 0])
        total[0] += summary["num_statements"]
        total[1] += summary["num_statements"] + summary["num_branches"]
        total[2] += summary["covered_lines"] + summary["covered_branches"]
    return [
        Room(name, lines, 100.0 * hit / possible if possible else 100.0, FLOORS.get(name, FLOOR))
        for name, (lines, possible, hit) in sorted(found.items())
    ]


def table(found: list[Room]) -> str:
    return "\n".join(
        f"{room.name:<24} {room.lines:>6} lines  {room.covered:5.1f} %"
        + (f"  under {room.least:.0f} %" if room.is_low else "")
        for room in found
    )


def measured() -> Mapping[str, Any]:
    """Combine the processes' data files (they stay) and read the report. Raises SystemExit with a sentence."""
    from coverage import Coverage
    from coverage.exceptions import CoverageException

    try:
        coverage = Coverage(config_file=str(ROOT / "pyproject.toml"))
        coverage.combine(keep=True)
        coverage.get_data().touch_files(
            str(path) for package in PACKAGES for path in (ROOT / package).rglob("*.py")
        )  # what no process imported counts as not run
        coverage.save()
        with tempfile.TemporaryDirectory() as folder:
            report = Path(folder) / "coverage.json"
            # Tests run copies of the packages, too, from folders that are gone.
            coverage.json_report(outfile=str(report), include=[f"{ROOT}/{package}/*" for package in PACKAGES])
            files: Mapping[str, Any] = json.loads(report.read_text())["files"]
    except CoverageException as error:
        raise SystemExit(f"There is no coverage to report ({error}): run `make test` first.") from None
    return files


def main() -> int:
    found = rooms(measured())
    print(table(found))
    low = [room.name for room in found if room.is_low]
    if low:
        print(
            f"Too little: {', '.join(low)}. Test the behaviour that is missing, or delete code without a caller."
        )
    return 1 if low else 0


if __name__ == "__main__":
    sys.exit(main())
