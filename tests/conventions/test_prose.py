"""Goal: docstrings and comments of the code are short sentences with a subject, as the pages are (test_english.py)."""

from __future__ import annotations

import ast
import io
import re
import tokenize
from collections.abc import Iterator
from inspect import cleandoc
from typing import Final

import pytest

from tests.conventions.test_english import FREE_RELATIVE, ROOT, WORD, WORDS_MAX, sentences

SUFFIXES: Final = {".py", ".pyi", ".pyx", ".pxi", ".pxd"}
RETIRED: Final = (
    (
        r"(?:^|(?<=[.:;?!] ))(?:What|Who)\b(?![^.!]*\?)|; what\b",
        "begin with a noun: 'Accepted records survive ...'",
    ),
    (r"\b[Ww]hom\b", "name the person or process"),
    (FREE_RELATIVE, "name the thing: 'delivers the queued records'"),
    (r"\b[Mm]end(?:s|ed|ing)?\b", "say fix or repair, or name the act"),
)

_DRAWN: Final = re.compile(r"\S {2,}\S|^ *[|│┌└├0-9]|^ {4,}")
"""A line of a drawing, a table or an example."""
_EXAMPLES: Final = "\b"
"""click: the lines behind it, up to an empty one, stay as they are."""
_ITEM: Final = re.compile(r" *(?:[-*] |\d+\. )")
_QUOTED: Final = re.compile(r"``[^`]*``|`[^`]*`|\"[^\"]*\"|«[^»]*»")


def texts(source: str) -> Iterator[tuple[int, str]]:
    """(line, text) of each docstring and each run of comments. Lexical, so that Cython can be read as well."""
    comments: list[str] = []
    begun = end = 0
    is_statement = True
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT:
            alone = not token.line[: token.start[1]].strip()
            if comments and not (alone and token.start[0] == end + 1):
                yield begun, "\n".join(comments)
                comments = []
            begun = begun if comments else token.start[0]
            comments.append(token.string.lstrip("#:").removeprefix(" "))
            end = token.start[0] if alone else -1
        elif token.type == tokenize.STRING and is_statement and token.string.endswith(('"""', '"')):
            text = ast.literal_eval(token.string)
            if ";\n" not in text:  # else it is C
                yield token.start[0], cleandoc(text)
        if token.type not in {tokenize.COMMENT, tokenize.NL}:
            is_statement = token.type in {tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT}
    if comments:
        yield begun, "\n".join(comments)


def paragraphs(line: int, text: str) -> Iterator[tuple[int, str]]:
    """Paragraphs and items of a list, without drawings, each with the line where it begins."""
    block: list[str] = []
    first = line
    is_example = False
    for number, each in enumerate([*text.splitlines(), ""], line):
        is_example = each == _EXAMPLES or (is_example and bool(each))
        is_prose = bool(each.strip()) and not is_example and not _DRAWN.search(each)
        if block and (not is_prose or _ITEM.match(each)):
            yield first, " ".join(block)
            block = []
        if is_prose:
            first = first if block else number
            item = _ITEM.match(each)
            block.append(each[item.end() if item else 0 :].strip())


def faults(source: str) -> Iterator[str]:
    for begun, text in texts(source):
        for line, paragraph in paragraphs(begun, text):
            plain = _QUOTED.sub("CODE", paragraph)
            for sentence in sentences(plain):
                words = WORD.findall(sentence)
                if len(words) > WORDS_MAX:
                    yield f"{line}: {len(words)} words: {sentence[:90]}"
            for pattern, why in RETIRED:
                for found in re.finditer(pattern, plain):
                    yield f"{line}: {found[0]!r}: {why}: {plain[found.start() : found.end() + 40]}"


def rooms() -> list[str]:
    packages = [path for path in (ROOT / "sidecar").iterdir() if (path / "__init__.py").exists()]
    others = (ROOT / "client_stub", ROOT / "pyspark_kafka_sidecar", ROOT / "tests")
    return sorted({path.relative_to(ROOT).as_posix() for path in (*packages, *others)})


@pytest.mark.parametrize("room", rooms())
def test_the_room_speaks_in_short_sentences(room: str) -> None:
    found = [
        f"{path.relative_to(ROOT)}:{fault}"
        for path in sorted((ROOT / room).rglob("*.p[xy]*"))
        if path.suffix in SUFFIXES
        for fault in faults(path.read_text())
    ]
    assert not found, "\n".join(found)


def test_the_check_finds_what_it_is_for() -> None:
    long = "A word " + "and a word " * WORDS_MAX
    source = (
        f'"""{long}."""\n# {long.replace("and", chr(10) + "# and", 1)}.\nx = 1  # What was sent is lost.\n'
        f'def f():\n    """Short. Who asks? Who asks waits.\n\n    0  {long}\n    """\n'
        f'    return "{long}"  # The one whom it wakes.\n'
    )
    assert sorted(int(fault.split(":")[0]) for fault in faults(source)) == [1, 2, 4, 6, 10]
