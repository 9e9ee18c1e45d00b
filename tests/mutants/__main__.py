"""``make mutants``: plants one fault after the other in a copy of this clone, and says which test sees each.

A fault is seen by a test of ``make quick`` or of the simulation that fails with it, fails with it again alone, and
passes without it. Tests that name the fault's rule run first, then those of its rooms, then all others.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import textwrap
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from tests.conventions.rule_table import rule_tests
from tests.mutants.planted import BEHAVIOUR, ROOT, Mutant, drawn, mutants

COPY: Final = ROOT / ".demo" / "mutants" / "clone"
RESULTS: Final = ROOT / ".demo" / "mutants" / "results.json"
"""Of this run and earlier ones: the fault's text → the test that saw it, or "" ."""
PAGE: Final = ROOT / "docs" / "testing.md"
BEGIN: Final = "<!-- planted faults: python -m tests.mutants --page -->\n"
END: Final = "<!-- end of planted faults -->\n"
SUITE: Final = "not process and not kafka and not spark"
QUICK: Final = f"{SUITE} and not slow"
STAGE_S: Final = 3_600
TEST_S: Final = 120
PASSED: Final = 0
NOTHING_CHOSEN: Final = 5
NEAR: Final = 2
"""How many stages run only tests of a fault's rule and rooms."""
ROOMS: Final = {"client_stub": "stub", "common": "controller"}
"""Folders of tests with another name than their room."""


def copy_clone() -> None:
    """The clone as it is, with what is compiled, changed or new."""
    shutil.rmtree(COPY, ignore_errors=True)
    listed = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    names = subprocess.run(listed, cwd=ROOT, check=True, capture_output=True, text=True).stdout.split("\0")
    compiled = [
        str(each.relative_to(ROOT))
        for room in ("sidecar", "client_stub")
        for each in (ROOT / room).rglob("*.so")
    ]
    for name in filter(None, [*names, *compiled]):
        source = ROOT / name
        if source.is_file():
            (COPY / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(source, COPY / name)
    (COPY / ".demo").mkdir(exist_ok=True)
    (COPY / ".demo" / "venv").symlink_to(ROOT / ".demo" / "venv")


class Copy:
    """The copy of the clone, with at most one fault in it."""

    def __init__(self) -> None:
        self._serial = 0

    @contextmanager
    def with_fault(self, mutant: Mutant) -> Iterator[None]:
        path = COPY / mutant.file
        is_compiled = path.suffix in {".pyx", ".pxi", ".pxd"}
        modules = {each: each.read_bytes() for each in path.parent.glob("*.so")} if is_compiled else {}
        source = path.read_text()
        self._write(path, mutant.planted(source))
        if is_compiled:
            self._compile()
        try:
            yield
        finally:
            self._write(path, source)
            for each, content in modules.items():
                each.write_bytes(content)

    def _write(self, path: Path, text: str) -> None:
        """Give the file this text. Python trusts compiled code by the time and size of its source, so each text gets a
        time of its own.
        """
        path.write_text(text)
        self._serial += 1
        at_s = time.time() + 2 * self._serial
        os.utime(path, (at_s, at_s))

    def _compile(self) -> None:
        build = "from setuptools import setup; setup()"
        done = subprocess.run(
            [sys.executable, "-W", "ignore", "-c", build, "-q", "build_ext", "--inplace"],
            cwd=COPY,
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode:
            sys.exit(f"The planted fault does not compile: {done.stderr[-2_000:]}")

    def run(self, *arguments: str) -> str | None:
        """The first test that failed, "" if none did."""
        failed = COPY / ".demo" / "failed-tests.txt"
        failed.unlink(missing_ok=True)
        command = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider"]
        done = subprocess.run(
            [*command, "-o", f"timeout={TEST_S}", "--ignore=tests/conventions", *arguments],
            cwd=COPY,
            env=os.environ | {"PYTHONPATH": str(COPY), "FAILED_TESTS": str(failed)},
            capture_output=True,
            text=True,
            timeout=STAGE_S,
            check=False,
        )
        if done.returncode in (PASSED, NOTHING_CHOSEN):
            return ""
        lines = failed.read_text().splitlines() if failed.exists() else []
        if not lines:
            sys.exit(f"pytest ended with {done.returncode}: {done.stdout[-2_000:]}{done.stderr[-2_000:]}")
        return lines[0].removeprefix("FAILED ").partition(": E ")[0]


def stages(mutant: Mutant) -> list[list[str]]:
    """Arguments of pytest for each stage: the rule's tests, its rooms, all others."""
    of_rule = sorted({each.path for each in rule_tests() if each.rule == mutant.rule})
    package, *rest = Path(mutant.file).parts
    room = ROOMS.get(rest[0] if package == "sidecar" else package, rest[0])
    rooms = sorted({str(Path(each).parent) for each in of_rule} | {f"tests/{room}"})
    rooms = [each for each in rooms if (ROOT / each).is_dir()]
    return [
        ["-m", QUICK, *of_rule],
        ["-m", QUICK, *rooms],
        ["-m", QUICK, "-n", "2"],
        ["-m", SUITE, "tests/simulation"],
    ]


def seen_by(copy: Copy, mutant: Mutant, *, near: bool) -> str:
    """The test that fails with the fault, and again alone; "" if none does. ``near``: only the first stages."""
    with copy.with_fault(mutant):
        for stage in stages(mutant)[: NEAR if near else None]:
            lucky: list[str] = []
            while found := copy.run(*stage, *(f"--deselect={each}" for each in lucky)):
                if copy.run(found):
                    return found
                lucky.append(found)
    return ""


def table(results: dict[str, str]) -> str:
    lines = ["| rule | planted fault | seen by |", "|---|---|---|"]
    for each in mutants():
        found = results.get(each.fault)
        test = (
            "not run"
            if found is None
            else f"`{found.rpartition('::')[2].partition('[')[0]}`"
            if found
            else "**none**"
        )
        lines.append(f"| {each.rule} | {each.fault} | {test} |")
    return "\n".join(lines) + "\n"


def print_page(results: dict[str, str]) -> None:
    before, _, rest = PAGE.read_text().partition(BEGIN)
    _, _, after = rest.partition(END)
    PAGE.write_text(f"{before}{BEGIN}\n{table(results)}\n{END}{after}")


def main(words: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="make mutants", description=__doc__)
    parser.add_argument("words", nargs="*", help="only faults whose rule or text contains one of these")
    parser.add_argument("--draw", action="store_true", help="print the sentence of each rule that was drawn")
    parser.add_argument("--left", action="store_true", help="only faults without a result of an earlier run")
    parser.add_argument(
        "--page", action="store_true", help="print the results of all runs into docs/testing.md"
    )
    parser.add_argument("--near", action="store_true", help="only the tests of the fault's rule and rooms")
    options = parser.parse_args(words)
    if options.draw:
        for rule, sentence in drawn(BEHAVIOUR.read_text()).items():
            print(textwrap.fill(f"{rule}: {sentence}", width=120, subsequent_indent="  "))
        return 0
    results: dict[str, str] = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
    if options.page:
        print_page(results)
        return 0
    chosen = [
        each
        for each in mutants()
        if not options.words or any(word == each.rule or word in each.fault for word in options.words)
        if not options.left or not results.get(each.fault)
    ]
    for each in chosen:
        each.planted((ROOT / each.file).read_text())
    copy_clone()
    copy = Copy()
    for each in chosen:
        began_s = time.monotonic()
        found = results[each.fault] = seen_by(copy, each, near=options.near)
        RESULTS.write_text(json.dumps(results, indent=1))
        said = f"seen by {found}" if found else "MISSED"
        print(f"{each.rule:4}{each.fault}: {said} ({time.monotonic() - began_s:.0f} s)", flush=True)
    seeing = sorted({results[each.fault] for each in chosen} - {""})
    while seeing and (found := copy.run(*seeing)):
        print(f"{found} fails without any fault as well.")
        seeing.remove(found)
        results.update((fault, "") for fault, test in results.items() if test == found)
        RESULTS.write_text(json.dumps(results, indent=1))
    missed = sum(not results[each.fault] for each in chosen)
    print(f"{len(chosen) - missed} of {len(chosen)} planted faults were seen.")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
