"""The table that `make test` ends with, on a report of known figures."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests import coverage_by_room
from tests.coverage_by_room import FLOOR, FLOORS, PACKAGES, Room, main, room_of, rooms, table

ROOT = Path(__file__).parents[2]


def summary(lines: int, hit: int, branches: int = 0, branches_hit: int = 0) -> dict[str, dict[str, int]]:
    return {
        "summary": {
            "num_statements": lines,
            "covered_lines": hit,
            "num_branches": branches,
            "covered_branches": branches_hit,
        }
    }


def test_a_room_is_the_folder_under_its_package() -> None:
    assert room_of("client_stub/producer.py") == "client_stub"
    assert room_of("client_stub/spark/writer.py") == "client_stub"
    assert room_of("sidecar/__main__.py") == "sidecar"
    assert room_of("sidecar/worker/streams/session.py") == "sidecar/worker"


def test_lines_and_branches_of_a_room_are_summed() -> None:
    found = rooms({
        "sidecar/net/a.py": summary(60, 60, 20, 10),
        "sidecar/net/b.py": summary(20, 20),
        "sidecar/shm/__init__.py": summary(0, 0),
    })  # fmt: skip
    assert [(room.name, room.lines, room.covered) for room in found] == [
        ("sidecar/net", 80, 90.0),
        ("sidecar/shm", 0, 100.0),
    ]
    assert not any(room.is_low for room in found)


def test_a_room_under_its_floor_fails_and_is_named(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    report = {"sidecar/net/a.py": summary(1_000, 899), "sidecar/shm/a.py": summary(10, 9)}
    monkeypatch.setattr(coverage_by_room, "measured", lambda: report)
    assert main() == 1
    printed = capsys.readouterr().out
    assert "sidecar/net" in printed.splitlines()[-1]
    assert "sidecar/shm" not in printed.splitlines()[-1]
    report["sidecar/net/a.py"] = summary(1_000, 900)
    assert main() == 0


def test_only_tools_have_a_floor_of_their_own() -> None:
    report = {f"{name}/a.py": summary(1_000, 899) for name in FLOORS} | {
        "client_stub/a.py": summary(1_000, 899)
    }
    assert [room.name for room in rooms(report) if room.is_low] == ["client_stub"]
    assert all((ROOT / name).is_dir() for name in FLOORS)


def test_the_table_marks_what_is_low() -> None:
    low, high = table([Room("a", 10, FLOOR - 0.1, FLOOR), Room("b", 10, FLOOR, FLOOR)]).splitlines()
    assert "under" in low
    assert "under" not in high


def test_every_room_is_measured() -> None:
    """A package that coverage.py does not look at has no figure, and nothing would say so."""
    import tomllib

    run = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["coverage"]["run"]
    assert set(run["include"]) == {f"*/{package}/*" for package in PACKAGES}
    assert run["branch"]
    assert set(run["patch"]) == {"subprocess", "_exit"}
    assert not any(
        Path(f"/clone/{package}").match(pattern) for package in PACKAGES for pattern in run["omit"]
    )
