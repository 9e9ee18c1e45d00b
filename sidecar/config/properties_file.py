"""Reads Java's properties files, as Kafka's tools accept them: ``linger.ms=5``. The format is java.util.Properties'.

The loader calls it.
"""

from __future__ import annotations

import re
from typing import Final

_ESCAPE: Final = re.compile(r"\\(u[0-9a-fA-F]{4}|.)", re.DOTALL)
_SPLIT: Final = re.compile(r"((?:\\.|[^\\=:\s])*)\s*[=:]?\s*(.*)", re.DOTALL)
_LETTERS: Final = {"t": "\t", "n": "\n", "r": "\r", "f": "\f"}


def parse_properties(text: str) -> dict[str, str]:
    """Settings by name. The last line of a name counts. Unlike in Java, trailing spaces are not part of a value."""
    found: dict[str, str] = {}
    pending = ""
    for natural_line in text.splitlines():
        line, pending = pending + natural_line.lstrip(), ""
        if not line or line[0] in "#!":
            continue
        if (len(line) - len(line.rstrip("\\"))) % 2:
            pending = line[:-1]
            continue
        _take(found, line)
    if pending:
        _take(found, pending)
    return found


def _take(found: dict[str, str], line: str) -> None:
    split = _SPLIT.match(line)
    assert split is not None  # each part may be empty
    found[_plain(split[1])] = _plain(split[2].rstrip())


def _plain(text: str) -> str:
    def letter(found: re.Match[str]) -> str:
        body = found[1]
        return chr(int(body[1:], 16)) if len(body) == 5 else _LETTERS.get(body, body)

    return _ESCAPE.sub(letter, text)
