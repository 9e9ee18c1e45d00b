"""Finding: one line of the doctor's output."""

from __future__ import annotations

from typing import Literal, NamedTuple

Mark = Literal["ok", "warn", "FAIL", "skip"]


class Finding(NamedTuple):
    """``text`` is one sentence."""

    mark: Mark
    text: str
