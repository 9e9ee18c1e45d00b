"""Goal: each block of Python on the pages for users runs as it stands there, against a real daemon."""

from __future__ import annotations

import ast
import inspect
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from client_stub import Producer
from sidecar.tools.testing.daemon import SidecarDaemon
from sidecar.tools.testing.fake_broker import FakeBroker

ROOT = Path(__file__).resolve().parents[2]
PAGES = ("README.md", "docs/getting-started.md", "docs/stub-api.md")
RUNNER = """
import ast, asyncio, inspect, sys
code = compile(sys.stdin.read(), sys.argv[1], "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
done = eval(code, {"__name__": "__main__"})
if inspect.iscoroutine(done):
    asyncio.run(done)
"""
"""As ``python -m asyncio``: a block may await at its top."""


def blocks() -> list[tuple[str, str]]:
    """(page:line, text) of all blocks but those that need a Spark session (tests/spark has those)."""
    found = []
    for page in PAGES:
        text = (ROOT / page).read_text()
        for block in re.finditer(r"^```python\n(.*?)^```", text, re.DOTALL | re.MULTILINE):
            if not block[1].startswith("df.write"):
                found.append((f"{page}:{text[: block.start()].count(chr(10)) + 1}", block[1]))
    return found


def signature(text: str) -> ast.FunctionDef | None:
    """A block that shows how a call is made, such as ``close(timeout=None)``."""
    try:
        (first, *rest) = ast.parse(f"def {text.strip()}: ...").body
    except SyntaxError:
        return None
    return first if isinstance(first, ast.FunctionDef) and not rest else None


CALLS = [(place, found) for place, text in blocks() if (found := signature(text)) is not None]
PROGRAMS = [(place, text) for place, text in blocks() if signature(text) is None]
SERVERS = "kafka-1:9092"
"""The cluster of the pages. A twin's program of another one than the daemon's is refused."""


class Served(NamedTuple):
    daemon: SidecarDaemon
    servers: str


@pytest.fixture(scope="module")
def served() -> Iterator[Served]:
    topics = {"orders": 3, "greetings": 2, "logs": 1}
    with FakeBroker(topics=topics) as broker, SidecarDaemon(broker.bootstrap_servers) as daemon:
        yield Served(daemon, broker.bootstrap_servers)


@pytest.mark.process
@pytest.mark.unmeasured
@pytest.mark.parametrize(("place", "text"), PROGRAMS, ids=[place for place, _ in PROGRAMS])
def test_a_program_on_a_page_runs(served: Served, tmp_path: Path, place: str, text: str) -> None:
    run = subprocess.run(
        [sys.executable, "-P", "-c", RUNNER, place],
        input=text.replace(SERVERS, served.servers),
        cwd=tmp_path,
        env=os.environ | {"KAFKA_SIDECAR_RUN_DIR": str(served.daemon.run_dir)},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert run.returncode == 0, f"{place}:\n{run.stderr}"
    # A handler that drops lines, or a record that nobody asked about, ends with 0 and a warning.
    assert run.stderr == "", f"{place}:\n{run.stderr}"


@pytest.mark.parametrize(("place", "call"), CALLS, ids=[place for place, _ in CALLS])
def test_a_call_on_a_page_has_the_arguments_and_defaults_of_the_code(
    place: str, call: ast.FunctionDef
) -> None:
    function: Any = Producer.__init__ if call.name == "Producer" else getattr(Producer, call.name)
    real = [
        each
        for each in inspect.signature(function).parameters.values()
        if each.name != "self" and each.annotation != "Never"  # what nobody may give
    ]
    arguments = call.args
    plain = [ast.literal_eval(each) for each in arguments.defaults]
    shown = dict.fromkeys((each.arg for each in arguments.args), inspect.Parameter.empty)
    shown.update(zip([each.arg for each in arguments.args][len(shown) - len(plain) :], plain, strict=True))
    for named, default in zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True):
        shown[named.arg] = inspect.Parameter.empty if default is None else ast.literal_eval(default)
    assert shown == {each.name: each.default for each in real}, place


def test_there_are_programs_and_calls_to_look_at() -> None:
    assert len(PROGRAMS) >= 6 and len(CALLS) >= 6
