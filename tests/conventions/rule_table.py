"""The list rule → code → tests at the end of docs/behaviour.md, made from the tests' own markers.

``python -m tests.conventions.rule_table`` rewrites it.
"""

from __future__ import annotations

import ast
import sys
import textwrap
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Final, NamedTuple

ROOT: Final = Path(__file__).resolve().parents[2]
DOCUMENT: Final = ROOT / "docs" / "behaviour.md"
HEADING: Final = "## Rule, code, tests"

CODE: Final = {
    "M1": "metadata/metadata.py, worker/topics/topics.py",
    "M2": "metadata/metadata.py",
    "M3": "metadata/metadata.py",
    "M4": "controller/cluster/awaitable_metadata.py",
    "M5": "controller/cluster/awaitable_metadata.py, worker/topics/topics.py",
    "M6": "metadata/metadata.py, controller/cluster/metadata_fetcher.py",
    "M7": "metadata/metadata.py, producer/sender.py",
    "M8": "metadata/merge.py, worker/topics/placement.py, kernel/partitioner.pxi",
    "M9": "metadata/errors.py, worker/topics/topics.py",
    "M10": "worker/topics/topics.py",
    "U1": "controller/cluster/update_metadata.py",
    "U2": "controller/cluster/update_metadata.py",
    "U3": "metadata/cache.py, common/control.py",
    "U4": "metadata/cache.py",
    "U5": "worker/driver.py, worker/topics/topics.py",
    "A1": "producer/record_accumulator.py, worker/stubs/intake.py",
    "A2": "shm/buffer_pool.py, worker/stubs/intake.py",
    "A3": "kernel/records.pxi, client_stub/producer.py",
    "A4": "producer/partition_schedule.py",
    "A5": "producer/record_accumulator.py",
    "A6": "producer/batch_outcomes.py, worker/outcomes/settlement.py",
    "A7": "producer/batch_outcomes.py, producer/producer_batch.py",
    "A8": "producer/sender.py, producer/record_accumulator.py",
    "A9": "producer/record_accumulator.py, client_stub/producer.py",
    "S1": "worker/driver.py, producer/sender.py",
    "S2": "worker/driver.py, controller/daemon.py",
    "S3": "common/errors.py, producer/batch_outcomes.py",
    "S4": "producer/producer_id.py, producer/partition_sequences.py",
    "S5": "producer/sender.py, net/kafka/cluster_links.py",
    "S6": "protocol/connection_states.py, net/kafka/connector.py, net/kafka/cluster_links.py",
}
"""Every rule but S7 (transactions), with the file where it lives."""


class RuleTest(NamedTuple):
    rule: str
    path: str
    name: str


@cache
def rule_tests() -> tuple[RuleTest, ...]:
    """Every test function with a rule marker of its own or of its class or module."""
    return tuple(_rule_tests())


def _rule_tests() -> Iterator[RuleTest]:
    for path in sorted((ROOT / "tests").rglob("test_*.py")):
        source = path.read_text()
        if "rule(" not in source:
            continue  # most have none, and to parse them all takes a second
        for rule, name in rules_of(ast.parse(source)):
            yield RuleTest(rule, str(path.relative_to(ROOT)), name)


def rules_of(
    scope: ast.Module | ast.ClassDef, inherited: frozenset[str] = frozenset()
) -> Iterator[tuple[str, str]]:
    """(rule, test) of a module or class."""
    marks = inherited | {
        rule
        for node in scope.body
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "pytestmark"
        for each in ast.walk(node.value)
        if (rule := _rule_of(each)) is not None
    }
    for node in scope.body:
        if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            own = marks | {rule for each in node.decorator_list if (rule := _rule_of(each)) is not None}
            if isinstance(node, ast.ClassDef):
                yield from rules_of(node, own)
            elif node.name.startswith("test_"):
                yield from ((rule, node.name) for rule in own)


def _rule_of(node: ast.AST) -> str | None:
    match node:
        case ast.Call(func=ast.Attribute(attr="rule"), args=[ast.Constant(value=str(rule)), *_]):
            return rule
    return None


def table() -> str:
    """The section's text."""
    tests: dict[str, dict[str, list[str]]] = {}
    for each in rule_tests():
        tests.setdefault(each.rule, {}).setdefault(each.path, []).append(each.name)
    lines = [
        HEADING,
        "",
        "`sidecar/` is left out of the paths of code, `tests/` of those of tests. S7 is tested by the scenarios TX.",
    ]
    for rule, code in CODE.items():
        lines += ["", f"### {rule}", "", f"Code: {', '.join(f'`{path}`' for path in code.split(', '))}", ""]
        for path, names in sorted(tests.get(rule, {}).items()):
            listed = ", ".join(f"`{name}`" for name in sorted(set(names)))
            lines += textwrap.wrap(
                f"- `{path.removeprefix('tests/')}`: {listed}",
                width=120,
                subsequent_indent="  ",
                break_long_words=False,
            )
    return "\n".join(lines) + "\n"


def main() -> int:
    text = DOCUMENT.read_text()
    before = text.split(HEADING, maxsplit=1)[0].rstrip()
    DOCUMENT.write_text(f"{before}\n\n{table()}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
