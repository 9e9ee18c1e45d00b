"""The planted faults of mutants.toml, and the sentences of docs/behaviour.md that they break."""

from __future__ import annotations

import random
import re
import tomllib
from pathlib import Path
from typing import Final, NamedTuple

ROOT: Final = Path(__file__).resolve().parents[2]
LIST: Final = Path(__file__).with_name("mutants.toml")
BEHAVIOUR: Final = ROOT / "docs" / "behaviour.md"
SEED: Final = 30


class Mutant(NamedTuple):
    rule: str
    fault: str
    file: str
    old: str
    new: str

    def planted(self, source: str) -> str:
        """The source with the fault. Raises ValueError if its place is not there exactly once."""
        count = source.count(self.old)
        if count != 1:
            raise ValueError(
                f"{self.file} has the text of the planted fault {self.fault!r} {count} times: correct `old` in "
                f"{LIST.relative_to(ROOT)}."
            )
        return source.replace(self.old, self.new)


def mutants() -> list[Mutant]:
    return [Mutant(**each) for each in tomllib.loads(LIST.read_text())["mutant"]]


def drawn(text: str, seed: int = SEED) -> dict[str, str]:
    """One sentence of each rule, chosen by the seed."""
    sentences: dict[str, list[str]] = {}
    rule = ""
    for line in text.split("## At the edges", maxsplit=1)[0].splitlines():
        begin = re.match(r"- \*\*([A-Z]\d+)\*\* (.*)", line)
        if begin:
            rule = begin[1]
            sentences.setdefault(rule, []).append(begin[2])
        elif not line.startswith("  "):
            rule = ""
        elif rule and line.lstrip().startswith("- "):
            sentences[rule].append(line.lstrip()[2:])
        elif rule:
            sentences[rule][-1] += f" {line.strip()}"
    choice = random.Random(seed).choice
    return {
        rule: choice([each for part in parts for each in re.split(r"(?<=[.:;])\s+(?=[A-Z`(])", part)])
        for rule, parts in sentences.items()
    }
