"""Goal: links of the pages lead somewhere, lines fit a screen, and common words are spelt right everywhere."""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Final

import pytest

from tests.conventions.test_machine_paths import tracked

ROOT: Final = Path(__file__).resolve().parents[2]
PAGES: Final = (*sorted(ROOT.glob("*.md")), *sorted((ROOT / "docs").rglob("*.md")))
LINE_MAX: Final = 120
MISSPELT: Final = {
    "accomodate": "accommodate",
    "adress": "address",
    "aquire": "acquire",
    "begining": "beginning",
    "cancelation": "cancellation",
    "comitted": "committed",
    "definately": "definitely",
    "dependant": "dependent",
    "existance": "existence",
    "independant": "independent",
    "lenght": "length",
    "neccessary": "necessary",
    "occured": "occurred",
    "occurence": "occurrence",
    "persistance": "persistence",
    "prefered": "preferred",
    "priviledge": "privilege",
    "recieve": "receive",
    "refered": "referred",
    "seperate": "separate",
    "succesful": "successful",
    "sucess": "success",
    "threshhold": "threshold",
    "transfered": "transferred",
    "untill": "until",
    "wich": "which",
    "writting": "writing",
}

_WRONG: Final = re.compile(rf"(?<![a-z])(?:{'|'.join(MISSPELT)})", re.IGNORECASE)
_FENCED: Final = re.compile(r"```.*?```", re.DOTALL)


def long_lines(text: str) -> Iterator[str]:
    """Lines of prose over the limit. Code, tables and the targets of links may be longer."""
    fenced = False
    for number, line in enumerate(text.splitlines(), 1):
        if line.startswith("```"):
            fenced = not fenced
        elif not fenced and not line.startswith(("|", "<")):
            shown = len(re.sub(r"\]\([^)]*\)", "]", line))
            if shown > LINE_MAX:
                yield f"{number}: {shown} characters"


@cache
def _anchors(path: Path) -> frozenset[str]:
    """GitHub's: lower case, spaces to dashes, other signs dropped."""
    titles = re.findall(r"^#+ (.*)$", path.read_text(), re.MULTILINE)
    return frozenset(re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles)


def dead_links(path: Path) -> Iterator[str]:
    for target in re.findall(r"\]\(([^)\s]+)\)", _FENCED.sub("", path.read_text())):
        if target.startswith(("http://", "https://", "mailto:")):
            continue
        name, _, anchor = target.partition("#")
        page = (path.parent / name) if name else path
        if not page.exists():
            yield f"{target} does not exist"
        elif anchor and anchor not in _anchors(page):
            yield f"{target} has no such heading"


def misspelt(text: str) -> Iterator[str]:
    for number, line in enumerate(text.splitlines(), 1):
        for found in _WRONG.finditer(line):
            yield f"{number}: {found[0]}: write {MISSPELT[found[0].lower()]}"


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.name)
def test_the_page_fits_a_screen_and_its_links_lead_somewhere(path: Path) -> None:
    found = [*long_lines(path.read_text()), *dead_links(path)]
    assert not found, f"{path.name}: " + "\n".join(found)


def test_words_are_spelt_right() -> None:
    found = [
        f"{path.relative_to(ROOT)}:{fault}"
        for path in tracked("*.py", "*.pyi", "*.pyx", "*.pxi", "*.md", "*.toml", "*.yml", "*.html", "*.js")
        if path != Path(__file__)
        for fault in misspelt(path.read_text())
    ]
    assert not found, "\n".join(found)


def test_the_checks_find_what_they_are_for(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(
        f"# A page\n\n{'x' * (LINE_MAX + 1)}\n[a](nosuch.md) [b](#a-page) [c](#nosuch)\n\n```\n{'x' * 200}\n```\n"
    )
    assert len(list(long_lines(page.read_text()))) == 1
    assert list(dead_links(page)) == ["nosuch.md does not exist", "#nosuch has no such heading"]
    assert len(list(misspelt("It occured in test_seperate_threads.\nIt occurred in sandwich.\n"))) == 2
