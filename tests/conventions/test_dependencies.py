"""Goal: an installation asks for what is imported, and for nothing else; each import is asked for by its extra."""

from __future__ import annotations

import ast
import re
import sys
import tomllib
from collections.abc import Iterator, Mapping
from functools import cache
from importlib.metadata import packages_distributions
from importlib.util import find_spec
from pathlib import Path
from typing import Final

import pytest

from tests.conventions.test_layering import ROOT, imports, sources, type_only_lines

OURS: Final = frozenset({"sidecar", "client_stub", "pyspark_kafka_sidecar"})
BASE: Final = "base"
ROOMS: Final = (
    ("client_stub/records/column", "arrow"),
    ("client_stub/zmtp/curve.py", "curve"),
    ("client_stub/spark", "spark"),
    ("client_stub/pipeline/protobuf_schema.py", "protobuf"),
    ("client_stub/pipeline/registry.py", "registry"),
    ("client_stub/pipeline", "spark"),
    ("pyspark_kafka_sidecar", "spark"),
    # Its fixture is there for who has pytest; the rest needs nothing.
    ("client_stub/testing.py", "dev"),
    ("client_stub", BASE),
    ("sidecar/cli/parquet_rows.py", "parquet"),
    ("sidecar/net/tls/pkcs12.py", "pkcs12"),
    ("sidecar/controller/cluster/aws_token.py", "msk"),
    ("sidecar/tools/testing", "dev"),
    ("sidecar/tools/bench", "dev"),
    ("sidecar/tools/chaos", "demo"),
    ("sidecar/tools/demo", "demo"),
    ("sidecar", "daemon"),
)
"""Files by the start of their path, the first that fits: the extra that they may count on."""
GIVES: Final = {
    BASE: (BASE,),
    "arrow": (BASE, "arrow"),
    "spark": (BASE, "spark"),
    "protobuf": (BASE, "spark", "protobuf"),
    "registry": (BASE, "spark", "registry"),
    "daemon": (BASE, "daemon"),
    "pkcs12": (BASE, "daemon", "pkcs12"),
    "curve": (BASE, "curve"),
    "parquet": (BASE, "daemon", "arrow"),
    "msk": (BASE, "daemon", "msk"),
    "demo": (BASE, "daemon", "spark", "demo"),
    "dev": (BASE, "daemon", "msk", "spark", "demo", "dev"),
}
RUNTIME: Final = (BASE, "daemon", "msk", "pkcs12", "curve", "arrow", "spark", "protobuf", "registry", "demo")
"""Extras of people who run the product; "dev" has the tools of those who change it."""


NOT_OF_QUICK: Final = {"aws_msk_iam_sasl_signer": ["aws-msk-iam-sasl-signer-python"]}
"""Distributions of another name than their module that `make quick` does not install."""
IN_GOOGLE: Final = {"google.protobuf": "protobuf"}
"""Modules of a package that several distributions share."""


def _name(distribution: str) -> str:
    return re.sub(r"[-_.]+", "-", distribution).lower()


@cache
def distributions() -> Mapping[str, list[str]]:
    return {**NOT_OF_QUICK, **packages_distributions()}


@cache
def declared() -> dict[str, frozenset[str]]:
    """Distributions by extra, as pyproject.toml has them; "dev" with those of "quick"."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    lists = {BASE: project["dependencies"], **project["optional-dependencies"]}
    lists["dev"] = [*lists["dev"], *lists["quick"]]
    return {
        extra: frozenset(
            _name(match[0]) for each in wanted if (match := re.match(r"[\w.-]+", each)) is not None
        )
        - {_name(project["name"])}
        for extra, wanted in lists.items()
    }


def third_party(module: str, path: Path) -> Iterator[tuple[int, str]]:
    """(line, distribution) of what a file imports at run time and is neither Python's nor ours."""
    tree = ast.parse(path.read_text())
    type_only = type_only_lines(tree)
    known = distributions()
    for line, name in imports(module, tree):
        top = name.split(".")[0]
        if top in OURS or top in sys.stdlib_module_names or line in type_only:
            continue
        shared = next((each for start, each in IN_GOOGLE.items() if name.startswith(start)), None)
        yield line, shared or _name(known.get(top, [top])[0])


@cache
def imported() -> dict[str, dict[str, str]]:
    """Room → distribution → the first place that imports it."""
    found: dict[str, dict[str, str]] = {}
    for module, path in sources():
        shown = path.relative_to(ROOT).as_posix()
        room = next(room for start, room in ROOMS if shown.startswith(start))
        for line, distribution in third_party(module, path):
            found.setdefault(room, {}).setdefault(distribution, f"{shown}:{line}")
    return found


OF_LIBRARIES: Final = frozenset({"pandas", "grpcio-tools", "googleapis-common-protos"})
"""What a library imports without asking for it: PySpark for mapInArrow(), confluent-kafka for Protobuf. And protoc,
which is started.
"""


@pytest.mark.slow
@pytest.mark.parametrize("extra", RUNTIME)
def test_each_dependency_is_imported(extra: str) -> None:
    rooms = [room for room in imported() if extra in GIVES[room] and room != "dev"]
    used = {name for room in rooms for name in imported()[room]}
    assert not declared()[extra] - used - OF_LIBRARIES, f"asked for by {extra}, and never imported"


STARTED: Final = frozenset({"gunicorn", "ruff", "mypy", "coverage", "pytest-xdist", "pytest-timeout"})
"""Of "dev": programs and plugins, which nobody imports."""
TYPES: Final = re.compile(r"types-|.*-(?:types|stubs)$")


@pytest.mark.slow
def test_each_development_dependency_is_used() -> None:
    used = {name for names in imported().values() for name in names}
    for path in (*(ROOT / "tests").rglob("*.py"), *(ROOT / "deploy").rglob("*.py")):
        used |= {name for _, name in third_party("tests", path)}
        used |= {_name(name) for name in re.findall(r"importorskip\(\s*\"([\w.]+)\"", path.read_text())}
    known = {_name(each) for names in distributions().values() for each in names}
    used |= {_name(each) for top in used for each in distributions().get(top, ())} & known
    left = {each for each in declared()["dev"] if not TYPES.match(each)} - used - STARTED - OF_LIBRARIES
    assert not left, f"asked for by dev, and neither imported nor started: {left}"


@pytest.mark.slow
def test_each_import_is_asked_for() -> None:
    missing = [
        f"{place} imports {name}, which the extra {room} does not bring"
        for room, names in imported().items()
        for name, place in names.items()
        if name not in frozenset().union(*(declared()[extra] for extra in GIVES[room]))
    ]
    assert not missing, "\n".join(missing)


def test_doctor_looks_for_what_the_daemon_imports() -> None:
    from sidecar.cli.doctor import NEEDED_PACKAGES

    known = distributions()
    assert {_name(known[each][0]) for each in NEEDED_PACKAGES} == declared()["daemon"] | declared()[BASE]
    assert all(find_spec(each) is not None for each in NEEDED_PACKAGES)
