"""The code speaks in the field's words: names, comments, docstrings and texts without the retired ones."""

from __future__ import annotations

import ast
import io
import re
import tokenize
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Final

import pytest

ROOT: Final = Path(__file__).resolve().parents[2]

RETIRED: Final = {
    r"told|tellings?": "completed, acked, notified; or reported, known",
    r"hush(?:ed|es)?": "muted, quiet",
    r"seats?": "slots, worker indexes",
    r"bare (?:workers?|died)": "standby",
    r"disown(?:s|ed)?": "withdraw, reset",
    r"keeps? house": "periodic",
    r"has news": "is readable, has events",
    r"fares well|gives up on the old|be somebody else": "a Kafka, libuv or Aeron term",
    r"anew": "again; or name the new thing",
    r"all the same": "anyway, still",
    r"of before": "earlier, previous",
    r"who(?:ever|mever|soever)": "name the subject",
    (
        r"bells?|rang|rung|ringing|on ring|rings? (?:it|them|all|us|once|every|no more|when)"
        r"|(?:timer|timerfd|loop|thread|workers?|to|who|which|it|and|one|that) rings?"
    ): "wake, expire; a ring holds outcomes",
}
"""Word in any text or name (a name's parts count as words) -> the words to use."""

SUBJECT: Final = re.compile(r"(?:^|(?<=[.:;] ))(?:What|Who)\b(?![^.!]*\?)")
"""A free relative as the subject of a sentence that a user reads: 'Accepted records survive ...' is plainer."""

CONTRACT: Final = frozenset({"told_delivered", "told_failed", "told_twice", "never_told"})
"""Keys of the JSON that `kafka-sidecar chaos` prints."""

_WORD: Final = {word: re.compile(rf"\b(?:{word})\b", re.IGNORECASE) for word in RETIRED}
_QUOTED: Final = re.compile(r"`[^`]*`")


def _rooms() -> list[str]:
    packages = [path for path in (ROOT / "sidecar").iterdir() if (path / "__init__.py").exists()]
    others = (ROOT / "client_stub", ROOT / "pyspark_kafka_sidecar", ROOT / "sidecar" / "__main__.py")
    return sorted(path.relative_to(ROOT).as_posix() for path in (*packages, *others))


@cache
def _name(identifier: str) -> str:
    return re.sub(r"(?<=[a-z])(?=[A-Z])", " ", identifier).replace("_", " ").strip()


def _texts(source: str) -> Iterator[tuple[int, str, bool]]:
    """Line, text, and whether a user may read it: names, comments, docstrings (not seen) and other strings (seen)."""
    docstrings = set()
    strings: list[tuple[int, str, bool]] = []
    tree = ast.parse(source)
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            docstrings.update(
                id(each.value)
                for each in node.body
                if isinstance(each, ast.Expr) and isinstance(each.value, ast.Constant)
            )
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            strings.append((node.lineno, re.sub(r"\s+", " ", node.value), id(node) not in docstrings))
    yield from strings
    comment: list[str] = []
    begun = 0
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.NAME and token.string not in CONTRACT:
            yield token.start[0], _name(token.string), False
        elif token.type == tokenize.COMMENT:
            begun = begun if comment else token.start[0]
            comment.append(token.string.lstrip("#: "))
        elif token.type != tokenize.NL and comment:
            yield begun, " ".join(comment), False
            comment = []


def faults(where: str, source: str) -> Iterator[str]:
    for line, text, seen in _texts(source):
        if seen and " " not in text:
            continue  # a key, a state, a kill point: part of a contract
        plain = _QUOTED.sub("CODE", text)
        for word, pattern in _WORD.items():
            for found in pattern.finditer(plain):
                yield f"{where}:{line}: {found[0]!r} is retired, say: {RETIRED[word]}"
        if seen and (found_subject := SUBJECT.search(plain)):
            yield f"{where}:{line}: {found_subject[0]!r}: begin with a noun"


@pytest.mark.parametrize("room", _rooms())
def test_the_room_speaks_in_the_fields_words(room: str) -> None:
    found = []
    files = sorted((ROOT / room).rglob("*.py")) or [ROOT / room]
    for path in files:
        where = path.relative_to(ROOT).as_posix()
        found += [
            f"{where}: its name is retired, say: {RETIRED[w]}"
            for w, p in _WORD.items()
            if p.search(_name(path.stem))
        ]
        found += faults(where, path.read_text())
    for path in sorted((ROOT / room).rglob("*.p[xy][xid]")):  # Cython and its .pyi: every line
        for number, line in enumerate(path.read_text().splitlines(), 1):
            found += [
                f"{path.name}:{number}: {hit[0]!r} is retired, say: {RETIRED[w]}"
                for w, p in _WORD.items()
                if (hit := p.search(_name(line)))
            ]
    assert not found, "\n".join(found)


def test_the_check_finds_what_it_is_for() -> None:
    source = (
        '"""What a room is."""\n'
        "told_at = 1  # made\n# anew\nclass BareWorker: ...\n"
        'log("What was sent is lost. All the same.")\nlog("What now?", "`told`")\n'
    )
    assert len(list(faults("x.py", source))) == 5
