"""Compares patterns of ``[topics."PATTERN"]``: the first that matches a topic counts, so their order matters.

The loader calls it.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from fnmatch import fnmatchcase

_PIECE = re.compile(r"\*+|\[!?\]?[^\]]*\]|.", re.DOTALL)


def is_glob(pattern: str) -> bool:
    return any(sign in pattern for sign in "*?[")


def overlap(one: str, other: str) -> bool:
    """True if some topic may match both patterns; ``[ab]`` counts as any character."""
    left, right = _pieces(one), _pieces(other)
    seen: set[tuple[int, int]] = set()
    ways = [(0, 0)]
    while ways:
        way = i, j = ways.pop()
        if way in seen:
            continue
        seen.add(way)
        if i == len(left) and j == len(right):
            return True
        star = i < len(left) and left[i] == "*", j < len(right) and right[j] == "*"
        if star[0] or star[1]:
            # A star ends here, or matches the other's next piece.
            if star[0] or i < len(left):
                ways.append((i + 1, j))
            if star[1] or j < len(right):
                ways.append((i, j + 1))
        elif i < len(left) and j < len(right) and (left[i] == right[j] or "?" in (left[i], right[j])):
            ways.append((i + 1, j + 1))
    return False


def _pieces(pattern: str) -> list[str]:
    return [
        "*" if piece[0] == "*" else "?" if piece == "?" or len(piece) > 1 else piece
        for piece in _PIECE.findall(pattern)
    ]


def covered(patterns: Sequence[str]) -> list[tuple[str, str]]:
    """(pattern, an earlier one) for each pattern that can never apply: names that an earlier pattern matches, and all
    after ``*``.
    """
    found: list[tuple[str, str]] = []
    for index, pattern in enumerate(patterns):
        for earlier in patterns[:index]:
            if fnmatchcase(pattern, earlier) if not is_glob(pattern) else set(earlier) == {"*"}:
                found.append((pattern, earlier))
                break
    return found
