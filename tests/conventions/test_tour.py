"""docs/tour.md names nothing that is not there: functions in their files, rooms and imports, settings, words."""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from collections.abc import Iterator
from functools import cache
from typing import Final

import click
import pytest

from sidecar.cli.main import cli
from sidecar.config.settings import BY_NAME
from tests.conventions.test_layering import OURS, ROOT, TOOLS, sources

TOUR: Final = ROOT / "docs" / "tour.md"
LINES_MAX: Final = 225
"""Each room has a row."""
FUNCTIONS: Final = 12

RUN_FILES: Final = frozenset({"workers.lock"})
"""Files of a run dir: made by the code, not in the repository."""

_SPAN: Final = re.compile(r"`([^`]+)`")
_STEP: Final = re.compile(r"^\d+\. \*\*`(\w+\.\w+)`\*\* \(`([\w/.]+)`\)", re.MULTILINE)
_IN_FILE: Final = re.compile(r"`([\w.]+)`(?:\*\*)?\s+\(`([\w/.]+\.(?:py|pxi|pyx))`\)")
_CYTHON: Final = re.compile(r"^( *)(?:cdef |cpdef )?(class|def) (?:inline )?(\w+)", re.MULTILINE)


# --- what there is ------------------------------------------------------------------------------------------------


@cache
def _index() -> tuple[dict[str, set[str]], dict[str, set[str]]]:
    """(name or Class.name → files where it is defined, class → names of its bases)."""
    files: defaultdict[str, set[str]] = defaultdict(set)
    bases: defaultdict[str, set[str]] = defaultdict(set)
    for _, path in sources():
        where = path.relative_to(ROOT).as_posix()
        for node in ast.parse(path.read_text()).body:
            for name in _defined(node):
                files[name].add(where)
            if isinstance(node, ast.ClassDef):
                bases[node.name] |= {ast.unparse(base).rsplit(".", 1)[-1] for base in node.bases}
                for name in _members(node):
                    files[f"{node.name}.{name}"].add(where)
    for path in (path for room in ("sidecar", "client_stub") for path in (ROOT / room).rglob("*.p[xy][ix]")):
        if path.suffix == ".pyi":
            continue
        where = path.relative_to(ROOT).as_posix()
        owner = ""
        for indent, kind, name in _CYTHON.findall(path.read_text()):
            owner = "" if not indent else owner
            files[f"{owner}.{name}" if indent and owner else name].add(where)
            owner = name if kind == "class" else owner
    return files, bases


def _defined(node: ast.stmt) -> Iterator[str]:
    if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
        yield node.name
    elif isinstance(node, ast.Assign):
        yield from (each.id for each in node.targets if isinstance(each, ast.Name))
    elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
        yield node.target.id


def _members(owner: ast.ClassDef) -> Iterator[str]:
    for node in owner.body:
        yield from _defined(node)
        for inner in ast.walk(node):
            if (
                isinstance(inner, ast.Attribute)
                and isinstance(inner.ctx, ast.Store)
                and isinstance(inner.value, ast.Name)
                and inner.value.id == "self"
            ):
                yield inner.attr


def places(name: str) -> set[str]:
    """The files that define ``name`` or ``Class.name``, by the class itself or one that it is built on."""
    files, bases = _index()
    found = set(files.get(name, ()))
    owner, _, member = name.rpartition(".")
    for base in bases.get(owner, ()):
        found |= places(f"{base}.{member}")
    return found


def is_command(name: str) -> bool:
    """``kafka-sidecar NAME``, or ``make NAME``."""
    program, _, what = name.partition(" ")
    if program == "make":
        return re.search(rf"^{re.escape(what)}:", (ROOT / "Makefile").read_text(), re.MULTILINE) is not None
    return program == "kafka-sidecar" and what in cli.list_commands(click.Context(cli))


def is_there(name: str) -> bool:
    if " " in name:
        return is_command(name)
    if "/" in name:
        return (ROOT / name).exists()
    if name.endswith((".py", ".pyx")):
        return any(
            path.name == name for room in ("sidecar", "client_stub") for path in (ROOT / room).rglob(name)
        )
    return name in BY_NAME or name in RUN_FILES or bool(places(name))


# --- the page -----------------------------------------------------------------------------------------------------


def _text(page: str) -> str:
    """Without drawings."""
    return re.sub(r"```.*?```", "", page, flags=re.DOTALL)


def faults(page: str) -> list[str]:
    text = _text(page)
    found = [f"`{name}` is not there" for name in _SPAN.findall(text) if not is_there(name)]
    found += [
        f"`{name}` is not in {file}" for name, file in _IN_FILE.findall(text) if file not in places(name)
    ]
    for name in re.findall(r"\d+ (\w+\.\w+)\"", page):
        if not places(name):
            found.append(f"{name} of the drawing is not there")
    return found


def _rows(page: str, first: str) -> list[list[str]]:
    """The cells of the table whose first heading is ``first``."""
    table = page.split(f"\n| {first} |", maxsplit=1)[1].split("\n\n", maxsplit=1)[0]
    return [[cell.strip() for cell in line.strip("| ").split(" | ")] for line in table.splitlines()[2:]]


def test_every_name_of_the_tour_is_there() -> None:
    found = faults(TOUR.read_text())
    assert not found, "\n".join(found)


def test_the_tour_is_short() -> None:
    assert len(TOUR.read_text().splitlines()) <= LINES_MAX


def test_a_record_passes_twelve_functions() -> None:
    """Each with its file, numbered, and the drawing has the same ones under the same numbers."""
    page = TOUR.read_text()
    section = page.split("## One record")[1].split("\n## ")[0]
    steps = [name for name, _ in _STEP.findall(section)]
    assert len(steps) == FUNCTIONS == len(re.findall(r"^\d+\. ", section, re.MULTILINE))
    drawn = dict(re.findall(r"\"(\d+) (\w+\.\w+)\"", page))
    assert [drawn.get(str(number)) for number in range(1, FUNCTIONS + 1)] == steps


def _short(door: str) -> str:
    for prefix in ("sidecar.worker.", "sidecar.controller.", "sidecar.", "client_stub."):
        if door.startswith(prefix):
            return door.removeprefix(prefix)
    return door


def test_the_map_has_every_room_and_what_it_may_import() -> None:
    mapped = {cells[0].strip("`/").replace("/", "."): cells[2] for cells in _rows(TOUR.read_text(), "room")}
    table = {**OURS, **TOOLS}
    rooms = {room for room in table if (ROOT / room.replace(".", "/")).is_dir()}
    assert mapped.keys() == rooms, (
        f"rooms without a row in docs/tour.md, or rows without a room: {mapped.keys() ^ rooms}"
    )
    for room, cell in mapped.items():
        doors = ", ".join(_short(door) for door in table[room] if door != room) or "-"
        assert cell == doors, f"docs/tour.md, {room}: tests/conventions/test_layering.py says {doors}"


@pytest.mark.parametrize(
    "text",
    [
        "`Sender.pole`",
        "`Nobody.poll`",
        "`sidecar/producer/senders.py`",
        "`sidecar/workers/`",
        "`sanders.py`",
        "`linger.ns`",
        "`kafka-sidecar recovers`",
        "`make tours`",
        "`no_such_function`",
        "`Sender.poll` (`sidecar/worker/driver.py`)",
        "**`Producer.send`** (`client_stub/outbox/outbox.py`)",
        '```mermaid\n7["7 Sender.pole"]\n```',
    ],
)
def test_the_test_can_fail(text: str) -> None:
    assert faults(f"# A page\n\n{text} decides.\n")


@pytest.mark.parametrize(
    "text",
    [
        "`Engine.send` (`client_stub/engine/engine.py`)",
        "`Producer.send` (`client_stub/native/_native_submission.pxi`)",
        "`Chain.append` (`sidecar/kernel/chain.pxi`)",
        "`BatchOutcomes.decided`, `linger.ms`, `kafka-sidecar replay`, `sidecar/worker/`",
    ],
)
def test_names_that_are_there_are_found(text: str) -> None:
    assert not faults(f"# A page\n\n{text}.\n")
