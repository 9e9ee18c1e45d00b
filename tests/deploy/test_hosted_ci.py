"""The files that a host of the repository reads: they parse, and they call what is there.

A host's use of them cannot be tried here. Two things can: the workflows call targets that the Makefile has, and the
hooks before a commit are the commands of tests/conventions/test_linters.py.
"""

from __future__ import annotations

import re
import subprocess
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.conventions.test_linters import COMMANDS

yaml = pytest.importorskip("yaml")  # of the [dev] extra; an older environment of a clone lacks it

ROOT = Path(__file__).parents[2]
WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))
FORMS = sorted((ROOT / ".github" / "ISSUE_TEMPLATE").glob("*.yml"))
TARGETS = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))


def read(path: Path) -> Any:
    return yaml.safe_load(path.read_text())


def steps(workflow: dict[str, Any]) -> Iterator[dict[str, Any]]:
    for job in workflow["jobs"].values():
        yield from job["steps"]


def made(workflow: dict[str, Any]) -> list[str]:
    """The make targets that a workflow's steps run."""
    return [name for step in steps(workflow) for name in re.findall(r"\bmake ([\w-]+)", step.get("run", ""))]


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.name)
def test_a_workflow_is_whole(path: Path) -> None:
    workflow = read(path)
    assert workflow["name"] == path.stem
    assert workflow[True], "`on` (YAML reads the bare word as true) names no event"
    assert workflow["permissions"] == {"contents": "read"}
    for job in workflow["jobs"].values():
        assert job["timeout-minutes"] <= 60
    for step in steps(workflow):
        assert ("uses" in step) != ("run" in step), step
        assert "@" in step.get("uses", "@"), "an action without a version"
    assert set(made(workflow)) <= TARGETS


def test_hosted_ci_runs_what_a_developer_runs() -> None:
    targets = {"quick", "test", "test-image", "test-systemd", "audit", "sbom"}
    assert set(made(read(ROOT / ".github" / "workflows" / "ci.yml"))) == targets


def commands_of(target: str, stamps: Path) -> list[str]:
    """Commands that make would run for it in a clone where nothing has been done."""
    words = ["make", "-n", target, f"STAMPS={stamps}"]
    done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, check=True)
    return done.stdout.splitlines()


@pytest.mark.slow
def test_targets_without_java_ask_for_none_and_the_others_ask_first(tmp_path: Path) -> None:
    check = re.compile(r"check_host\.py( --without-java)?$")
    for target in ("demo", "demo-mock", "bench", "quick", "test", "check-host"):
        commands = commands_of(target, tmp_path / "stamps")
        first = next(found for each in commands if (found := check.search(each)))
        assert bool(first[1]) is (target in {"demo-mock", "quick"}), target
        before = "\n".join(commands[: next(i for i, each in enumerate(commands) if check.search(each))])
        assert "pip" not in before, "nothing is downloaded before"
    mock = "\n".join(commands_of("demo-mock", tmp_path / "stamps"))
    assert "kafka_jars" not in mock and "demo --without spark" in mock
    assert "sidecar demo --mock" in mock
    quick = "\n".join(commands_of("quick", tmp_path / "stamps"))
    assert (
        "kafka_jars" not in quick and "requirements.py quick" in quick and "requirements.py dev" not in quick
    )


def test_the_quick_job_runs_every_python_that_is_promised() -> None:
    job = read(ROOT / ".github" / "workflows" / "ci.yml")["jobs"]["quick"]
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    oldest = re.fullmatch(r">=(3\.\d+)", project["project"]["requires-python"])
    assert oldest is not None
    pythons = job["strategy"]["matrix"]["python"]
    assert pythons[0] == oldest[1]
    wheels = re.findall(r"cp3(\d+)-", project["tool"]["cibuildwheel"]["build"])
    assert [f"3.{minor}" for minor in wheels] == pythons
    assert read(ROOT / ".github" / "workflows" / "ci.yml")["jobs"]["debian"]["container"] == "debian:12"


def test_the_limits_of_the_suites_are_those_of_the_makefile() -> None:
    limits = re.findall(
        r"^(UNIT|PROCESS|ALONE|SPARK|OTHER)_SECONDS := (\d+)", (ROOT / "Makefile").read_text(), re.MULTILINE
    )
    page = (ROOT / "CONTRIBUTING.md").read_text().split("## The suites of `make test`")[1]
    said = re.findall(r"^\| (unit|process|alone|spark|other) \|[^|]*\| (\d+) min \|", page, re.MULTILINE)
    again = re.findall(
        r"^#   suite (\w+) .* at most +(\d+) min", (ROOT / ".ci" / "run").read_text(), re.MULTILINE
    )
    assert said == again == [(name.lower(), str(int(seconds) // 60)) for name, seconds in limits]


def test_wheels_are_for_both_processors_and_said_to_be_untried() -> None:
    path = ROOT / ".github" / "workflows" / "wheels.yml"
    matrix = read(path)["jobs"]["wheels"]["strategy"]["matrix"]["include"]
    assert {each["arch"] for each in matrix} == {"x86_64", "aarch64"}
    for said in (path, ROOT / "CHANGELOG.md", ROOT / "CONTRIBUTING.md"):
        assert "untried" in said.read_text().lower(), said.name


def test_hooks_are_the_commands_of_the_linter_tests() -> None:
    config = read(ROOT / ".pre-commit-config.yaml")
    hooks = [hook for repo in config["repos"] for hook in repo["hooks"]]
    entries = [hook["entry"].removeprefix(".demo/venv/bin/python -m ") for hook in hooks]
    conventions = "pytest -q tests/conventions --deselect tests/conventions/test_linters.py"
    assert entries == [" ".join(command) for command in COMMANDS] + [conventions]
    for hook in hooks:
        # ruff and mypy look at the whole project, as in CI: a hook that gets some files would judge otherwise.
        assert (hook["language"], hook["pass_filenames"]) == ("system", False)


@pytest.mark.parametrize("path", FORMS, ids=lambda path: path.name)
def test_an_issue_form_can_be_filled_in(path: Path) -> None:
    form = read(path)
    if path.name == "config.yml":
        assert {link["url"].split("/")[2] for link in form["contact_links"]} == {"github.com"}
        return
    assert form["name"] and form["description"]
    asked = [each for each in form["body"] if each["type"] != "markdown"]
    assert len({each["id"] for each in asked}) == len(asked)
    assert any(each.get("validations", {}).get("required") for each in asked)
    for name in re.findall(r"docs/[\w-]+\.md", path.read_text()):
        assert (ROOT / name).exists(), name


def test_one_address_of_the_project() -> None:
    urls = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["urls"]
    home = urls["Homepage"]
    assert all(url.startswith(home) for url in urls.values())
    for name in ("SECURITY.md", ".github/ISSUE_TEMPLATE/config.yml"):
        found = re.findall(r"https://github\.com/[\w/-]+", (ROOT / name).read_text())
        assert found and all(url.startswith(home) for url in found), name
