"""The lines of a TOML file's keys, which the standard library's parser does not keep.

On the driver, in the process of the pipeline's command or of spark-submit.
"""

from __future__ import annotations

import re
from typing import Final

Path = tuple[str | int, ...]
"""Such as ("output", 0, "value")."""

_TABLE: Final = re.compile(r"\s*\[([^\[\]]+)\]\s*(#.*)?$")
_TABLES: Final = re.compile(r"\s*\[\[([^\[\]]+)\]\]\s*(#.*)?$")
_KEY: Final = re.compile(
    r"""\s*((?:[A-Za-z0-9_-]+|"[^"]*"|'[^']*')(?:\s*\.\s*(?:[\w-]+|"[^"]*"|'[^']*'))*)\s*=(.*)$"""
)
_PART: Final = re.compile(r"""[A-Za-z0-9_-]+|"[^"]*"|'[^']*'""")


class Positions:
    """Finds the line of each table and key of ``text``. Keys within an inline table have the line of that table."""

    def __init__(self, text: str) -> None:
        self._lines: dict[Path, int] = {}
        self._content: dict[Path, int] = {}
        self._read(text)

    def line(self, path: Path) -> int:
        """The line of ``path``, or of the nearest part of the file around it; 1 for a path that is not there."""
        while path and path not in self._lines:
            path = path[:-1]
        return self._lines.get(path, 1)

    def content_line(self, path: Path) -> int:
        """The line at which the text of a key begins, which is the next one after an opening triple quote."""
        return self._content.get(path, self.line(path))

    def _read(self, text: str) -> None:
        table: Path = ()
        counts: dict[str, int] = {}
        closing = ""
        for number, line in enumerate(text.splitlines(), 1):
            if closing:
                closing = "" if closing in line else closing
                continue
            if (found := _TABLES.match(line)) is not None:
                name = ".".join(_parts(found[1]))
                index = counts[name] = counts.get(name, -1) + 1
                table = (*_parts(found[1]), index)
                self._lines.setdefault(table, number)
                self._lines.setdefault(table[:-1], number)
            elif (found := _TABLE.match(line)) is not None:
                first, *others = _parts(found[1])
                table = (first, counts[first], *others) if first in counts else (first, *others)
                self._lines.setdefault(table, number)
            elif (found := _KEY.match(line)) is not None:
                path = (*table, *_parts(found[1]))
                self._lines.setdefault(path, number)
                value = found[2].strip()
                quote = next((each for each in ('"""', "'''") if value.startswith(each)), "")
                if quote and quote not in value[3:]:
                    closing = quote
                    self._content[path] = number + (len(value) == 3)


def _parts(name: str) -> list[str]:
    return [part.strip("\"'") for part in _PART.findall(name)]
