"""The pages at the root and in docs/: plain sentences that fit a screen, and links that lead somewhere.

Docstrings of the code begin with a noun or a verb.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Final

import pytest

ROOT: Final = Path(__file__).resolve().parents[2]
PAGES: Final = (*sorted(ROOT.glob("*.md")), *sorted((ROOT / "docs").rglob("*.md")))

LINE_MAX: Final = 120
WORDS_MAX: Final = 30
WORD: Final = re.compile(r"[\w'’]+(?:[-./:][\w'’]+)*")
RULE_TABLE: Final = "## Rule, code, tests"
"""Printed: names of files and tests."""

FREE_RELATIVE: Final = (
    r"\b(?:behind|beyond|before|except|than|under|without|bounds?|closes?|delivers?|drains?|drops?|fails?|follows?"
    r"|forgets?|forgot|holds?|keeps?|kept|loses|lost|needs?|pass|passes|reads?|refuses?|replays?|sends?|stores?|takes?"
    r"|took|uses?|writes?) what\b(?! to\b)(?![^.!]*\?)"
)
"""Verbs and prepositions that ask nothing: an indirect question ("shows what happens") is good English."""
RETIRED: Final = (
    (r"\bof before\b", "say earlier or previous"),
    (r"\ball the same\b", "say anyway or still"),
    (r"\banew\b", "say again, or name what is new"),
    (r"\b(?:hush(?:ed)?|seats?|keeps? house|bell(?:s|ed)?)\b", "use the word list of the tour"),
    (r"\b(?:told|telling|tellings)\b", "Kafka completes or acknowledges; a page reports or says"),
    (r"\b(?:whoever|whomever|whosoever)\b", "name the subject"),
    (r"\bwhom\b", "name the person or process"),
    (r"(?<=[,;:(])[ ]?what\b(?![^.!]*\?)", "name the subject"),
    (FREE_RELATIVE, "name the thing: 'delivers the queued records'"),
    (r"\b[Mm]end(?:s|ed|ing)?\b", "say fix or repair, or name the act"),
    (r"\b(?:daemon|worker|process|one|run) before(?=[.,;:)])", "say the previous one"),
    (
        r"(?:^|(?<=[.:;] ))(?:\*\*)?(?:What|Who)\b(?![^.!]*\?)",
        "begin with a noun: 'Accepted records survive ...'",
    ),
)


def _prose(text: str) -> Iterator[tuple[int, str]]:
    """Paragraphs and list items, each with the number of its first line: no code, tables, headings or drawings."""
    fenced = False
    block: list[str] = []
    first = 0
    for number, line in enumerate([*text.splitlines(), ""], 1):
        fence = line.lstrip().startswith("```")
        fenced ^= fence
        is_prose = (
            not (fenced or fence) and line.strip() and not re.match(r"#|\||<|!\[| {4,}\S(?!.*[.,;] )", line)
        )
        begins = re.match(r"\s*(?:[-*] |\d+\. )|\*\*(?:Context|Decision|Why)\.\*\*", line)
        if block and (not is_prose or begins):
            yield first, " ".join(block)
            block = []
        if is_prose:
            if not block:
                first = number
            block.append(re.sub(r"^\s*(?:[-*] |\d+\. )", "", line).strip())


def _plain(text: str) -> str:
    """Without what is quoted: code spans count as one word, links as their text."""
    text = re.sub(r"`[^`]*`", "CODE", text)
    text = re.sub(r"«[^»]*»|\"[^\"]*\"", "QUOTE", text)
    text = re.sub(r"(?<!\*)\*told\*(?!\*)", "STATE", text)  # the name of a descriptor's state
    return re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", text)


def sentences(text: str) -> list[str]:
    return re.split(r"(?<=[.!?:])(?:\*\*|\*|\))* (?=[\[(*`]*[A-Z0-9])", text)


def faults(path: Path) -> Iterator[str]:
    text = path.read_text()
    fenced = False
    for number, line in enumerate(text.splitlines(), 1):
        if line.startswith("```"):
            fenced = not fenced
        elif not fenced and not line.startswith(("|", "<")):
            shown = len(re.sub(r"\]\([^)]*\)", "]", line))
            if shown > LINE_MAX:
                yield f"{path.name}:{number}: {shown} characters"
    for number, block in _prose(text):
        plain = _plain(block)
        for sentence in sentences(plain):
            words = WORD.findall(sentence)
            if len(words) > WORDS_MAX:
                yield f"{path.name}:{number}: {len(words)} words: {sentence[:90]}"
        for pattern, why in RETIRED:
            for found in re.finditer(pattern, plain, 0 if "What|Who" in pattern else re.IGNORECASE):
                yield f"{path.name}:{number}: {found[0]!r}: {why}"
    for number, line in enumerate(text.split(RULE_TABLE)[0].splitlines(), 1):
        if line.startswith("|"):
            yield from _faults_of_row(f"{path.name}:{number}", _plain(line))


def _faults_of_row(where: str, plain: str) -> Iterator[str]:
    for cell in plain.strip("| ").split(" | "):
        # A row of names is no sentence.
        for sentence in re.split(r"(?<=[.;]) ", re.sub(r"CODE(?:(?:, |<br>|: )CODE)+", "CODE", cell)):
            words = WORD.findall(sentence)
            if len(words) > WORDS_MAX:
                yield f"{where}: {len(words)} words: {sentence[:90]}"
    for pattern, why in RETIRED[:-1]:
        for found in re.finditer(pattern, plain, re.IGNORECASE):
            yield f"{where}: {found[0]!r}: {why}"


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.name)
def test_the_page_is_in_plain_english(path: Path) -> None:
    found = list(faults(path))
    assert not found, "\n".join(found)


def test_the_check_finds_what_it_is_for(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(
        "# A page\n\nWhat was accepted survives. Is it true? What is true?\n\n"
        f"- {'wo ' * (WORDS_MAX + 1)}end.\n\nThis was {'x' * LINE_MAX}\n\n| cell of before | `test_a`, `test_b` |\n"
        f"| {'wo ' * WORDS_MAX}end. Short. |\n\n```\nwhoever\n```\n"
    )
    found = list(faults(page))
    assert len(found) == 5, found
    for part in ("'What'", "32 words", "characters", "of before", "31 words"):
        assert any(part in fault for fault in found), part


@cache
def _anchors(path: Path) -> frozenset[str]:
    """GitHub's: lower case, spaces to dashes, other signs dropped."""
    titles = re.findall(r"^#+ (.*)$", path.read_text(), re.MULTILINE)
    return frozenset(re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles)


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.name)
def test_every_link_leads_somewhere(path: Path) -> None:
    for target in re.findall(r"\]\(([^)\s]+)\)", re.sub(r"```.*?```", "", path.read_text(), flags=re.DOTALL)):
        if target.startswith(("http://", "https://", "mailto:")):
            continue
        name, _, anchor = target.partition("#")
        page = (path.parent / name) if name else path
        assert page.exists(), f"{path.name}: {target} does not exist"
        if anchor:
            assert anchor in _anchors(page), f"{path.name}: {target} has no such heading"


_FREE_RELATIVE: Final = re.compile(r"\s*Wh(?:at|o|om|ose|oever|atever)\b")


def docstrings_without_noun(source: str) -> Iterator[str]:
    """Line and first words of docstrings, also those of attributes, that begin with a free relative."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            text = node.value.value
            if isinstance(text, str) and _FREE_RELATIVE.match(text):
                yield f"{node.lineno}: {' '.join(text.split()[:6])} ..."


@pytest.mark.parametrize("root", ["sidecar", "client_stub", "pyspark_kafka_sidecar"])
def test_docstrings_begin_with_a_noun_or_a_verb(root: str) -> None:
    found = [
        f"{path.relative_to(ROOT)}:{fault}"
        for path in sorted((ROOT / root).rglob("*.py*"))
        if path.suffix in {".py", ".pyi"}
        for fault in docstrings_without_noun(path.read_text())
    ]
    assert not found, "\n".join(found)


def test_the_check_of_docstrings_finds_what_it_is_for() -> None:
    source = '"""What a room is."""\nx = 1\n"""Who holds it."""\ndef f():\n    """The whole."""\n'
    assert len(list(docstrings_without_noun(source))) == 2
