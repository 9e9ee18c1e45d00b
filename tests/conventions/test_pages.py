"""The pages say what the code does: the stub's API, Spark's options, messages, broker facts, commands, settings."""

from __future__ import annotations

import ast
import inspect
import re
import tomllib
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import click
import pytest

import client_stub
from client_stub import errors
from client_stub.async_producer import AsyncProducer
from client_stub.contract.error_codes import ERROR_CODES
from client_stub.contract.wire import LocalCode
from client_stub.errors import DeliveryFailed, SidecarError, error_for
from client_stub.outbox.delivery import BulkDelivery, Delivery
from client_stub.producer import Producer
from client_stub.spark.options import read_options
from sidecar.cli.main import cli
from sidecar.common.model import ExitStatus
from sidecar.config.settings import SETTINGS
from tests.conventions.test_limits import names_of_tests
from tests.conventions.test_options import shown

ROOT = Path(__file__).resolve().parents[2]
STUB_API = (ROOT / "docs" / "stub-api.md").read_text()
SPARK = (ROOT / "docs" / "spark.md").read_text()
TROUBLESHOOTING = (ROOT / "docs" / "troubleshooting.md").read_text()
OF_TOOLS = {"bench", "chaos", "demo", "testing"}


def error_classes() -> list[type[SidecarError]]:
    found = [
        each for each in vars(errors).values() if inspect.isclass(each) and issubclass(each, SidecarError)
    ]
    return sorted(found, key=lambda each: each.__name__)


def _row(page: str, first: str) -> list[str]:
    """The cells of the row that begins so, in a page of docs/."""
    for line in page.splitlines():
        if line.startswith(f"| {first} |"):
            return [cell.strip() for cell in line.strip("| ").split(" | ")]
    raise AssertionError(f"{page.splitlines()[0]!r} in docs/ has no row that begins with | {first} |")


# --- docs/stub-api.md -------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", client_stub.__all__)
def test_every_public_name_of_the_stub_is_on_its_page(name: str) -> None:
    assert re.search(rf"^\| \[`{name}`\]", STUB_API, re.MULTILINE), name


@pytest.mark.parametrize(
    "kind", [Producer, AsyncProducer, Delivery, BulkDelivery], ids=lambda kind: kind.__name__
)
def test_every_public_method_and_argument_is_on_the_page(kind: type) -> None:
    for name, member in inspect.getmembers(kind):
        if name.startswith("_"):
            continue
        assert re.search(rf"\b{name}\b", STUB_API), f"{kind.__name__}.{name}"
        if inspect.isfunction(member):
            for argument in list(inspect.signature(member).parameters)[1:]:
                assert re.search(rf"\b{argument}\b", STUB_API), f"{kind.__name__}.{name}({argument})"


ARGUMENTS = [
    name
    for name, each in inspect.signature(Producer.__init__).parameters.items()
    if name != "self" and each.annotation != "Never"  # of what nobody may give
]


@pytest.mark.parametrize("name", ARGUMENTS)
def test_every_argument_of_the_producer_has_its_default(name: str) -> None:
    default = inspect.signature(Producer.__init__).parameters[name].default
    cells = _row(STUB_API, f"`{name}`")
    if isinstance(default, float):
        assert f"{default:,.0f}" in cells[1], f"{name}: the page says {cells[1]}, the code {default}"
    else:
        assert default is None


@pytest.mark.parametrize("kind", error_classes(), ids=lambda kind: kind.__name__)
def test_every_error_class_is_on_the_page_with_retriable(kind: type[SidecarError]) -> None:
    cells = _row(STUB_API, f"`{kind.__name__}`")
    codes = [code for code in ERROR_CODES if type(error_for(code)) is kind]
    retriable = {error_for(code).retriable for code in codes} or {kind.default_retriable}
    says = f"{kind.__name__}: the page says {cells[1]}, the codes of this class are retriable: {retriable}"
    if kind is DeliveryFailed:
        assert retriable == {True, False} and cells[1] == "by code"
    elif kind is errors.RecordTooLarge or len(cells) > 3 or not codes:
        assert {"yes": {True}, "no": {False}}[cells[1]] == retriable, says


def test_every_code_of_our_own_has_its_row() -> None:
    """Without one a caller would read of an unknown error of the broker."""
    missing = [code.name for code in LocalCode if code not in ERROR_CODES]
    assert not missing, f"no row in ERROR_CODES of client_stub/contract/error_codes.py: {missing}"


# --- docs/spark.md ----------------------------------------------------------------------------------------


def test_every_option_of_the_sink_is_on_the_page() -> None:
    folder = ROOT / "client_stub" / "spark"
    asked = {
        node.args[place].value
        for path in (folder / "options.py", folder / "exactly_once" / "settings.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Call)
        for place, callee in ((0, "get"), (1, "_number"), (1, "_flag"))
        if (getattr(node.func, "attr", None) == callee or getattr(node.func, "id", None) == callee)
        and len(node.args) > place
        and isinstance(node.args[place], ast.Constant)
    }
    asked.remove("checkpointlocation")  # Spark's own
    assert asked == {
        *("topic", "sidecar.run_dir", "sidecar.curve_key_file", "sidecar.autostart", "delivery", "window"),
        *("max.block.ms", "transaction.timeout.ms", "transactional.id.prefix", "commits.topic", "sink.id"),
        "job.id",
    }
    section = SPARK.split("## Options")[1].split("\n## ")[0]
    assert set(re.findall(r"^\| `([\w.]+)` \|", section, re.MULTILINE)) == asked | {"kafka.bootstrap.servers"}


def test_the_defaults_of_the_sink_are_those_on_the_page() -> None:
    options = read_options({"sidecar.run_dir": "/run"})
    assert _row(SPARK, "`window`")[1] == f"`{options.window_batches}`"
    assert _row(SPARK, "`max.block.ms`")[1] == f"`{options.max_block_ms}`"
    default = _row(SPARK, "`delivery`")[1].strip("`")
    assert read_options({"sidecar.run_dir": "/run", "delivery": default}) == options


# --- docs/troubleshooting.md ------------------------------------------------------------------------------


def quoted() -> list[str]:
    return re.findall(r"^### `(.*)`$", TROUBLESHOOTING, re.MULTILINE)


@cache
def texts() -> tuple[str, ...]:
    """Every string of the product, with "…" where a value is put in."""
    return tuple(
        _text(node)
        for package in ("sidecar", "client_stub")
        for path in (ROOT / package).rglob("*.py")
        if not OF_TOOLS & set(path.parts)
        for node in _strings(ast.parse(path.read_text()))
    )


def _strings(node: ast.AST) -> Iterator[ast.JoinedStr | ast.Constant]:
    """Docstrings too: they are strings, and nobody quotes them here."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.JoinedStr) or (
            isinstance(child, ast.Constant) and isinstance(child.value, str)
        ):
            yield child
        else:
            yield from _strings(child)


def _text(node: ast.JoinedStr | ast.Constant) -> str:
    parts = node.values if isinstance(node, ast.JoinedStr) else [node]
    text = "".join(str(part.value) if isinstance(part, ast.Constant) else "…" for part in parts)
    return re.sub(r"%[ds]|%\.\df|%r|\{[\w!]+\}", "…", text)


@pytest.mark.parametrize("quote", quoted())
def test_a_quoted_message_is_one_of_the_product(quote: str) -> None:
    pattern = re.compile(".*".join(re.escape(part) for part in quote.split("…")), re.DOTALL)
    assert any(pattern.search(text) for text in texts()), f"no message of the product reads {quote!r}"


@pytest.mark.parametrize("quote", quoted())
def test_a_quoted_message_says_what_to_do(quote: str) -> None:
    entry = TROUBLESHOOTING.split(f"### `{quote}`\n", 1)[1].split("\n#", 1)[0]
    assert re.search(r"^- \*\*Do\*\*: \S", entry, re.MULTILINE), quote


# --- docs/broker-facts.md ---------------------------------------------------------------------------------


def test_every_broker_fact_is_a_test_and_every_test_a_fact() -> None:
    page = (ROOT / "docs" / "broker-facts.md").read_text()
    tests = {
        node.name
        for path in ("tests/cluster/test_broker_facts.py", "tests/process/test_libzmq_facts.py")
        for node in ast.parse((ROOT / path).read_text()).body
        if isinstance(node, ast.FunctionDef) and node.name.startswith("test_")
    }
    rows = re.findall(r"^\|.*\| `(test_\w+)` \|$", page, re.MULTILINE)
    assert len(rows) == len(set(rows)) and set(rows) == tests, set(rows) ^ tests


# --- every page -------------------------------------------------------------------------------------------

PAGES = (*sorted(ROOT.glob("*.md")), *sorted((ROOT / "docs").rglob("*.md")))
PLANNED = {"txn"}
"""Commands that docs/roadmap.md names."""


def _typed(path: Path) -> list[str]:
    """Lines of code that call the command."""
    text = path.read_text()
    fenced = re.findall(r"^```\w*\n(.*?)^```", text, re.DOTALL | re.MULTILINE)
    lines = [line.split("#")[0] for block in fenced for line in block.splitlines()]
    lines += re.findall(r"`([^`\n]+)`", text)
    return [
        found
        for line in lines
        for found in re.findall(r"(?:^|[|;&] *|exec -T \w+ )(kafka-sidecar [a-z][^|;&]*)", line)
    ]


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.name)
def test_commands_on_a_page_exist_with_their_options(path: Path) -> None:
    root = click.Context(cli)
    for line in _typed(path):
        name = line.split()[1]
        if name in PLANNED and path.name == "roadmap.md":
            continue
        command = cli.get_command(root, name)
        assert command is not None, f"{path.name}: {line}"
        given = set(re.findall(r"(?<!\S)--[a-z-]+", line))
        params = list(command.params)
        if isinstance(command, click.Group):
            words = [word for word in line.split()[2:] if word.isalpha()]
            assert set(words[:1]) <= command.commands.keys(), f"{path.name}: {line}"
            params += [each for name in words[:1] for each in command.commands[name].params]
        known = {option for each in params for option in shown(each)}
        assert given <= known | {"--run-dir", "--help"}, f"{path.name}: {line}"


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.name)
def test_settings_on_a_page_exist(path: Path) -> None:
    named = re.findall(r"`((?:daemon|pool|dead_letters|http|recover)\.[a-z_]+)`", path.read_text())
    unknown = set(named) - {setting.name for setting in SETTINGS} - {"daemon.json", "daemon.lock"}
    assert not unknown, f"{path.name} names settings that do not exist: {unknown}"


def test_the_names_to_rely_on_are_all_there() -> None:
    """Commands, extras and exit codes of docs/compatibility.md."""
    section = (ROOT / "docs" / "compatibility.md").read_text().split("## Names you can rely on")[1]
    items = {
        found[1]: found[0] for found in re.findall(r"(\*\*([\w ]+)\*\*.*?)(?=\n- |\Z)", section, re.DOTALL)
    }
    named = {
        words.split()[0]
        for words in re.findall(r"`([a-z]+(?: [a-z]+)?)`", items["Commands"].split("All find")[0])
    }
    assert named == set(cli.list_commands(click.Context(cli)))
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert set(re.findall(r"`\[(\w+)\]`", items["Distribution"])) == project["optional-dependencies"].keys()
    workers = {each for each in ExitStatus if each.name.startswith("WORKER_")}
    assert {int(each) for each in re.findall(r"\b\d+\b", items["Exit codes"])} == set(ExitStatus) - workers


# --- the set of pages -------------------------------------------------------------------------------------


def test_the_index_names_every_page() -> None:
    index = (ROOT / "docs" / "index.md").read_text()
    rows = re.findall(r"^\| \[([\w-]+\.md)\]", index, re.MULTILINE)
    assert len(rows) == len(set(rows))
    missing = {path.name for path in (ROOT / "docs").glob("*.md")} - {"index.md"} - set(rows)
    assert not missing, f"docs/index.md has no row for {missing}"


def _tests_named(page: str) -> set[str]:
    return set(re.findall(r"`(test_\w+)`", page))


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.name)
def test_a_test_that_a_page_names_is_there(path: Path) -> None:
    """A claim that rests on a test which was renamed rests on nothing."""
    gone = _tests_named(path.read_text()) - names_of_tests()
    assert not gone, f"{path.name} names tests that do not exist: {gone}"


def test_the_threat_model_names_its_tests() -> None:
    assert len(_tests_named((ROOT / "SECURITY.md").read_text())) >= 10


def test_the_design_fits_three_screens() -> None:
    assert len((ROOT / "docs" / "design.md").read_text().splitlines()) <= 150


def test_each_decision_has_a_number_and_three_parts() -> None:
    page = (ROOT / "docs" / "decisions.md").read_text()
    records = re.split(r"^### (?=\d)", page.split("\n## ", 1)[0], flags=re.MULTILINE)[1:]
    assert [int(record.split(".", 1)[0]) for record in records] == list(range(1, len(records) + 1))
    for record in records:
        parts = re.findall(r"^\*\*(\w+)\.\*\* \S", record, re.MULTILINE)
        assert parts == ["Context", "Decision", "Why"], record.splitlines()[0]
    cited = {
        int(number) for path in PAGES for number in re.findall(r"\[?[Dd]ecision (\d+)", path.read_text())
    }
    assert cited <= set(range(1, len(records) + 1))
