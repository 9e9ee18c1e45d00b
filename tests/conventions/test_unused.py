"""Goal: every part of the product is run by the product; a rule proven on code that no record passes is not proven."""

from __future__ import annotations

from typing import Final

import pytest

from tests.conventions.unused import Definition, product_files, unused, unused_beside_the_product

KEPT: Final = {
    # Called by a library, by its name.
    "LazyGroup.invoke": "click",
    "LazyGroup.resolve_command": "click",
    "LazyGroup.format_commands": "click",
    "NumberRange.convert": "click",
    "RenamedOption.get_help_record": "click",
    "KafkaSidecarDataSource.streamReader": "Spark",
    "KafkaSidecarDataSource.streamWriter": "Spark",
    "LogLines.formatMessage": "logging",
    "TopicHandler.emit": "logging",
    "LogLines.formatTime": "logging",
    "_Thread._delete": "threading",
    "_Loader.get_code": "importlib",
    "_Loader.exec_module": "importlib",
    "_TimerSpec._fields_": "ctypes",
    # Given to users.
    "fake_producer": "the stub's API: a pytest fixture",
    "fake_async_producer": "the stub's API: a pytest fixture",
    "give_order": "the test kit's way to a kill point (docs/testing.md)",
    "safe_environment": "for processes that bench and demo start, beside the command they take",
    "ProducerStats.why_away": "the stub's API: a field of Producer.stats()",
    "PartitionInfo.in_sync_replicas": "the stub's API: a field of Producer.partitions_for()",
    **dict.fromkeys(("known_size_limit", "check_size", "send_and_wait"), "the stub's API"),
    "write_partition": "the API for programs of Spark (docs/spark.md)",
    "readinto": "io calls it for a raw stream's bytes",
    "get_renderables": "rich calls it for what a Progress shows",
    # In Cython.
    "_crc32c_soft": "the tests' way to the table that stands in for the CPU's instruction",
    **dict.fromkeys(
        ("RECORDS_PER_ENTRY_MAX", "PAGE_TAKEN", "next_partition"), "the kernel's bench, and its twin"
    ),
    "METRICS": "docs/metrics.md and the dashboard are printed from it",
    "BY_CHANCE": "the place of `random` among the partitioners, which is what is left",
}
"""Names that nothing in the product uses, and why they stay."""
KEPT_BESIDE: Final = {
    "Totals.flight_numbers": "compared with the other side's by ==",
    **dict.fromkeys(
        ("visit_FunctionDef", "visit_AsyncFunctionDef", "visit_ClassDef", "visit_Assign", "visit_Name"), "ast"
    ),
    **dict.fromkeys(("visit_Attribute", "visit_arg", "visit_Constant", "visit_Expr"), "ast"),
    **dict.fromkeys(("daemon_threads", "get_request", "handle_error", "protocol_version"), "http.server"),
    "readinto": "io",
    **dict.fromkeys(("do_GET", "do_POST", "log_message", "close_connection"), "http.server"),
}
"""The same of the tools and the tests, which a library calls by these names."""
API: Final = "client_stub/compat/"
"""Other clients' calls: only programs of users make them."""
BEING_BUILT: Final = ("stage", "include", "inclusion")
"""In a definition's path or name: stages are being built from both ends."""


def check(found: list[Definition], kept: dict[str, str]) -> None:
    def reason(each: Definition) -> str | None:
        names = (each.name, ".".join((*each.scope, each.name)))
        return next((name for name in names if name in kept), None)

    def is_being_built(each: Definition) -> bool:
        return any(word in "/".join((each.path, *each.scope, each.name)).lower() for word in BEING_BUILT)

    needless = [
        str(each)
        for each in found
        if reason(each) is None and not each.path.startswith(API) and not is_being_built(each)
    ]
    assert not needless, "used by nobody, or by tests only: put it to use or remove it\n" + "\n".join(
        needless
    )
    unused_kept = {reason(each) for each in found}
    assert unused_kept >= kept.keys(), f"used by now: {kept.keys() - unused_kept}"


def test_nothing_is_there_for_its_tests_only() -> None:
    check(unused(product_files()), KEPT)


@pytest.mark.slow
def test_nothing_in_the_tools_and_the_tests_is_there_for_nobody() -> None:
    check(unused_beside_the_product(), KEPT_BESIDE)


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
        ([("a.py", "LIMIT = 5\n__all__ = ['f']\ndef f(): ...")], ["LIMIT", "f"]),
        ([("client_stub/__init__.py", "__all__ = ['f']\ndef f(): ...")], []),
        ([("a.py", "class E(IntEnum):\n    A = 1\n    B = 2\nE.A")], ["B"]),
        ([("a.py", "class C:\n    WIDTH_MAX = 5\nC()")], ["WIDTH_MAX"]),
        ([("a.py", "@dataclass\nclass C:\n    width: int\nC(width=5)")], ["width"]),
        ([("a.pyx", "# f()\ncdef int f(int x):\n    return x")], ["f"]),
        ([("a.pyx", "def f(x):\n    return x"), ("b.py", "a.f(5)")], []),
        ([("a.pyx", "cdef enum:\n    LIMIT = 5\n    OTHER = 6\nx = LIMIT")], ["OTHER"]),
        ([("a.pyx", "cdef class C:\n    cdef readonly uint8_t kept, lost\nC.kept\nuint8_t")], ["lost"]),
        ([("tests/a.py", "@pytest.fixture(scope='module')\ndef f(): ...\ndef g(): ...\ng")], ["f"]),
        ([("tests/a.py", "@pytest.fixture\ndef f(): ...\n@x.mark(1)\ndef test_g(f): ...")], []),
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
