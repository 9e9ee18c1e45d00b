"""Goal: a package needs little to be made, and has its name only once it is whole."""

from __future__ import annotations

import os
import runpy
import subprocess
import sys
from pathlib import Path
from typing import Any, Final

import pytest

from sidecar.tools.bench.whole_file import whole_file
from tests.tools import lacks

ROOT: Final = Path(__file__).resolve().parents[2]
BREAKS: Final = """#!{python}
import os
import sys

if {kind!r} == "deb":
    path = sys.argv[-1]
else:
    folder = next(word.partition("=")[2] for word in sys.argv if "_rpmdir" in word).partition(" ")[2]
    path = folder + "/x86_64/kafka-sidecar-0.1.0-1.x86_64.rpm"
    os.makedirs(os.path.dirname(path))
with open(path, "w") as file:
    file.write("half of it")
sys.exit("interrupted")
"""


@pytest.fixture
def build(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    monkeypatch.setattr(sys, "path", [*sys.path])  # it adds its folder
    return runpy.run_path(str(ROOT / "deploy/packages/build.py"))


@pytest.fixture
def staged(tmp_path: Path, build: dict[str, Any]) -> Path:
    """What a package is made of, without its contents."""
    root = tmp_path / "root"
    for path in (*build["FILES"].values(), "opt/kafka-sidecar/file", "usr/bin/kafka-sidecar"):
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_text("text")
    return root


@pytest.mark.parametrize("kind", ["deb", "rpm"])
def test_a_package_that_breaks_off_leaves_nothing(
    kind: str, build: dict[str, Any], staged: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A deb of 1,672 bytes stood in dist/ under its real name after an interrupted run."""
    tools, folder = tmp_path / "tools", tmp_path / "dist"
    tools.mkdir()
    folder.mkdir()
    tool = tools / {"deb": "dpkg-deb", "rpm": "rpmbuild"}[kind]
    tool.write_text(BREAKS.format(python=sys.executable, kind=kind))
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tools}:{os.environ['PATH']}")
    with pytest.raises(SystemExit, match="interrupted"):
        build[kind](staged, folder, 1, is_plain=True)
    assert not [*folder.rglob("*")]


@pytest.mark.parametrize(("kind", "tool", "look"), [("deb", "dpkg-deb", "-c"), ("rpm", "rpmbuild", "")])
def test_a_whole_package_has_its_name(
    kind: str, tool: str, look: str, build: dict[str, Any], staged: Path, tmp_path: Path
) -> None:
    if reason := lacks(tool):
        pytest.skip(reason)
    folder = tmp_path / "dist"
    folder.mkdir()
    made = build[kind](staged, folder, 3, is_plain=True)
    assert [path for path in folder.rglob("*") if path.is_file()] == [made]
    assert made.suffix == f".{kind}" and "0.1.0-3" in made.name
    listing = ["dpkg-deb", look] if look else ["rpm", "-qlp"]
    shown = subprocess.run([*listing, str(made)], capture_output=True, text=True, check=True).stdout
    assert "/opt/kafka-sidecar/file" in shown and "/usr/bin/kafka-sidecar" in shown


@pytest.mark.parametrize("target", ["deb", "rpm", "wheels"])
def test_a_package_is_made_without_spark_and_the_tests_packages(target: str) -> None:
    """500 MB were installed to pack 13 MB."""
    planned = subprocess.run(
        ["make", "--dry-run", "--always-make", target, f"PYTHON={sys.executable}"],
        cwd=ROOT,
        env={name: value for name, value in os.environ.items() if name not in {"MAKEFLAGS", "MFLAGS"}},
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    assert "deploy/packages/" in planned
    assert "requirements" not in planned and "pip install --no-deps" not in planned
    assert "--wheel-dir dist" not in planned


def test_a_file_of_results_is_whole_or_not_there(tmp_path: Path) -> None:
    path = tmp_path / "results.json"
    with whole_file(path) as partial:
        partial.write_text("1")
        assert not path.exists() and partial.suffix == ".json"
    with pytest.raises(KeyboardInterrupt), whole_file(path) as partial:
        partial.write_text("half")
        raise KeyboardInterrupt
    assert path.read_text() == "1" and [*tmp_path.iterdir()] == [path]
    link = tmp_path / "link"
    link.symlink_to(path)
    with whole_file(link) as partial:
        partial.write_text("2")
    assert link.is_symlink() and path.read_text() == "2"
    with whole_file(Path("/dev/null")) as partial:
        assert partial == Path("/dev/null")
