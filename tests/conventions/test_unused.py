"""Goal: every part of the product is run by the product; a rule proven on code that no record passes is not proven."""

from __future__ import annotations

from typing import Final

import pytest

from tests.conventions.unused import product_files, unused

KEPT: Final = {
    # Called by a library, by its name.
    "LazyGroup.invoke": "click",
    "LazyGroup.resolve_command": "click",
    "LazyGroup.format_commands": "click",
    "NumberRange.convert": "click",
    "RenamedOption.get_help_record": "click",
    "KafkaSidecarDataSource.streamWriter": "Spark",
    "LogLines.formatMessage": "logging",
    "TopicHandler.emit": "logging",
    "LogLines.formatTime": "logging",
    "_Loader.get_code": "importlib",
    "_Loader.exec_module": "importlib",
    "_AsItIs.escape": "scramp",
    # Given to users.
    "fake_producer": "the stub's API: a pytest fixture",
    "fake_async_producer": "the stub's API: a pytest fixture",
    "ManualClock": "the clock of users' and our tests, beside the one it stands for",
    "give_order": "the test kit's way to a kill point (docs/testing.md)",
    "safe_environment": "for processes that bench and demo start, beside the command they take",
}
"""Names that nothing in the product uses, and why they stay."""
API: Final = "client_stub/compat/"
"""Other clients' calls: only programs of users make them."""


def test_nothing_is_there_for_its_tests_only() -> None:
    found = {".".join((*each.scope, each.name)): each for each in unused(product_files())}
    needless = [
        str(each) for name, each in found.items() if name not in KEPT and not str(each).startswith(API)
    ]
    assert not needless, "used by nobody, or by tests only: put it to use or remove it\n" + "\n".join(
        needless
    )
    assert found.keys() >= KEPT.keys(), f"used by now: {KEPT.keys() - found.keys()}"


@pytest.mark.parametrize(
    ("files", "names"),
    [
        ([("a.py", "def f(): ...")], ["f"]),
        ([("a.py", "def f(): ...\nf()")], []),
        ([("a.py", "def f():\n    f()")], ["f"]),
        ([("a.py", "def f(): ..."), ("b.py", "from a import f\n\nf()")], []),
        ([("a.py", "def f(): ..."), ("b.py", "from a import f")], ["f"]),
        ([("a.py", "class C:\n    def m(self): ...\nC()")], ["m"]),
        ([("a.py", "class C:\n    def m(self): ...\nC().m()")], []),
        ([("a.py", "class C:\n    @property\n    def p(self): ...\nC()")], ["p"]),
        ([("a.py", "LIMIT = 5\n__all__ = ['f']\ndef f(): ...")], ["LIMIT"]),
        ([("a.py", '"""f is fine."""\ndef f():\n    """f"""')], ["f"]),
        ([("a.py", "@group.command()\ndef f(): ...")], []),
        ([("a.py", "def f(): ..."), ("b.pyx", "from a import f")], []),
        (
            [
                (
                    "a.py",
                    "class C:\n    def __init__(self):\n        self.count = 0\n        self.count += 1\nC()",
                )
            ],
            ["count"],
        ),
        ([("a.py", "class C:\n    def __init__(self):\n        self.count = 0\nprint(C().count)")], []),
    ],
)
def test_the_test_can_fail(files: list[tuple[str, str]], names: list[str]) -> None:
    assert [each.name for each in unused(files)] == names
