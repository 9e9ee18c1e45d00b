"""Goal: a page names no file, make target, module, method, call or key of a configuration that is not there."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final

import pytest

from client_stub.pipeline.keys import TABLES, keys_of
from sidecar.config.refused_settings import REFUSED
from sidecar.config.settings import BY_NAME
from tests.conventions.test_layering import ROOT
from tests.conventions.test_tour import _index, places

PAGES: Final = tuple(
    page
    for page in (*sorted(ROOT.glob("*.md")), *sorted((ROOT / "docs").rglob("*.md")))
    if page.name != "CHANGELOG.md"
)
"""The changelog may name things that are gone."""

ELSEWHERE: Final = frozenset({"ProduceRequest.validateRecords"})
"""A class of Kafka's that has a namesake here."""
BROKERS_SETTINGS: Final = frozenset(
    {
        "connections.max.reauth.ms",
        "max.message.bytes",
        "producer.id.expiration.check.interval.ms",
        "producer.id.expiration.ms",
    }
)
NAMED_BY_USERS: Final = ("clients", "topics")
"""Tables of a configuration whose keys are names of the user's."""

_FENCE: Final = re.compile(r"^```(\w*)\n(.*?)^```", re.DOTALL | re.MULTILINE)
_FILE: Final = re.compile(
    r"(?:sidecar|client_stub|pyspark_kafka_sidecar|tests|docs|deploy|\.github)/[\w./-]+"
)


@cache
def _words() -> frozenset[str]:
    """All names in the sources, whoever defines them."""
    return frozenset(
        word
        for package in ("sidecar", "client_stub", "pyspark_kafka_sidecar")
        for path in (ROOT / package).rglob("*.p[xy]*")
        if path.suffix in {".py", ".pyx", ".pxi", ".pyi"}
        for word in re.findall(r"\w+", path.read_text())
    )


@cache
def _classes() -> frozenset[str]:
    return frozenset(name.partition(".")[0] for name in _index()[0] if "." in name)


@cache
def _targets() -> frozenset[str]:
    heads = re.findall(r"^([a-z][a-z -]*):(?!=)", (ROOT / "Makefile").read_text(), re.MULTILINE)
    return frozenset(name for head in heads for name in head.split())


def _is_module(name: str) -> bool:
    place = ROOT / name.replace(".", "/")
    if name.split(".", 1)[0] in ("sidecar", "tests", "client_stub"):
        return place.with_suffix(".py").exists() or (place / "__main__.py").exists()
    return find_spec(name) is not None


def faults(text: str) -> Iterator[str]:
    fences = _FENCE.findall(text)
    spans = re.findall(r"`([^`\n]+)`", _FENCE.sub("", text))
    lines = [
        line.split("#")[0].strip()
        for language, block in fences
        if language != "mermaid"
        for line in block.splitlines()
    ]
    for span in spans:
        if _FILE.fullmatch(span) and not any((ROOT / folder / span).exists() for folder in ("", "sidecar")):
            yield f"{span}: no such file"
        if (found := re.fullmatch(r"([\w/]+\.py)::(\w+).*", span)) is not None:
            files = [ROOT / found[1]] if "/" in found[1] else (ROOT / "tests").rglob(found[1])
            if not any(f"def {found[2]}(" in path.read_text() for path in files if path.exists()):
                yield f"{span}: no such test in that file"
        found = re.match(r"([A-Z]\w+)\.\w+", span)
        if found and found[1] in _classes() and found[0] not in ELSEWHERE and not places(found[0]):
            yield f"{span}: {found[1]} has no such member"
        setting = span.removeprefix("kafka.")  # an option of Spark's sink
        is_setting = re.fullmatch(r"[a-z]+(?:\.[a-z]+)+\.(?:ms|bytes|size|memory)", setting) is not None
        if is_setting and setting not in BY_NAME.keys() | REFUSED.keys() | BROKERS_SETTINGS:
            yield f"{span}: no such setting"
        if (found := re.fullmatch(r"(?:\w+\.)*(\w+)\(.*\)", span)) and found[1] not in _words():
            yield f"{span}: nothing is called so"
    for line in (*spans, *lines):
        if (found := re.match(r"make((?: [a-z][a-z-]*)+)", line)) is not None:
            yield from (f"make {name}: no such target" for name in found[1].split() if name not in _targets())
        for module in re.findall(r"\bpython3? -m ([\w.]+)", line):
            if not _is_module(module):
                yield f"python -m {module}: no such module"
    for language, block in fences:
        if language == "toml":
            yield from _unknown_keys(tomllib.loads(block))


def _unknown_keys(configuration: dict[str, Any]) -> Iterator[str]:
    for table, keys in configuration.items():
        if table in TABLES:
            used = {key for each in (keys if TABLES[table] else [keys]) for key in each}
            yield from (f"[{table}] {key}: no such key of a pipeline" for key in used - keys_of(table).keys())
        elif table not in NAMED_BY_USERS:
            for key in keys:
                if not {key if table == "kafka" else f"{table}.{key}"} & BY_NAME.keys():
                    yield f"[{table}] {key}: no such setting"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_all_that_a_page_names_is_there(page: Path) -> None:
    found = list(faults(page.read_text()))
    assert not found, "\n".join(found)


@pytest.mark.parametrize(
    "text",
    [
        "`sidecar/no/such.py`",
        "`tests/no_such_folder/`",
        "`tests/conventions/test_tour.py::test_nosuch`",
        "`make nosuch`",
        "```\nmake deb nosuch   # a comment\n```",
        "`Chain.nosuch`",
        "`Sender.nosuch(1)`",
        "`no_such_call(argument)`",
        "`linger.nosuch.ms`",
        "`python -m sidecar.tools.testing.nosuch`",
        "```sh\n.demo/venv/bin/python -m tests.nosuch\n```",
        "```toml\n[daemon]\nnosuch = 3\n```",
        "```toml\n[[output]]\ntopic = 'a'\n[[output]]\nnosuch = 3\n```",
        '```toml\n[kafka]\n"linger.nosuch" = 3\n```',
    ],
)
def test_the_test_can_fail(text: str) -> None:
    assert list(faults(f"# A page\n\n{text}\n"))


def test_names_that_are_there_are_found() -> None:
    text = (
        "`sidecar/shm/`, `producer/sender.py`, `make deb`, `Sender.poll`, `flush(until=...)`, `python -m pytest`\n\n"
        '```toml\n[kafka]\n"linger.ms" = 3\n[daemon]\nworkers = 1\n[clients.billing]\n"topics.allow" = ["a"]\n```\n'
    )
    assert not list(faults(text))
