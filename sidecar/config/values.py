"""Values of settings: raw text or TOML values converted to the type of their row, within its bounds.

The loader calls it for each value.
"""

from __future__ import annotations

import math
import re
from typing import Final

from sidecar.config.setting import Setting, Value, ValueKind

_SIZE: Final = re.compile(r"(\d+)\s*([kmg])(?:i?b)?", re.IGNORECASE)
"""Powers of 1,024 in each spelling, as in Spark, Docker and systemd."""
_TRUE: Final = frozenset({"1", "on", "t", "true", "y", "yes"})
_FALSE: Final = frozenset({"0", "off", "f", "false", "n", "no"})


def value_of(row: Setting, raw: object) -> Value:
    """The value of ``raw``, which is text (of -X and of variables) or a value of TOML.

    Raises ValueError when it has another type, is out of bounds, or is none of the row's choices. The caller has the
    words for it: :meth:`Setting.bounds_text`.
    """
    match row.kind:
        case ValueKind.INTEGER:
            size = _SIZE.fullmatch(raw.strip()) if row.is_size and isinstance(raw, str) else None
            whole = int(size[1]) << 10 * ("kmg".index(size[2].lower()) + 1) if size else _integer(raw)
            return int(_within(row, whole))
        case ValueKind.NUMBER:
            return _within(row, _number(raw))
        case ValueKind.BOOLEAN:
            return _boolean(raw)
        case ValueKind.LIST:
            return [_text(each) for each in _parts(raw)]
        case ValueKind.IDS:
            return [_text_or_number(each) for each in _parts(raw)]
        case ValueKind.INTEGERS:
            return [_at_least_0(_integer(each)) for each in _parts(raw)]
        case ValueKind.TEXT:
            text = _text_or_number(raw)
            return _choice(row, text) if row.choices else text


def _within(row: Setting, number: float) -> float:
    if (row.least is not None and number < row.least) or (row.most is not None and number > row.most):
        raise ValueError("out of bounds")
    return number


def _at_least_0(number: int) -> int:
    if number < 0:
        raise ValueError("negative")
    return number


def _integer(raw: object) -> int:
    if isinstance(raw, float) and raw.is_integer():
        return int(raw)
    if isinstance(raw, bool) or not isinstance(raw, int | str):
        raise ValueError("not a whole number")
    return int(raw)


def _number(raw: object) -> float:
    if isinstance(raw, bool) or not isinstance(raw, int | float | str):
        raise ValueError("not a number")
    try:
        number = float(raw)
    except OverflowError:
        raise ValueError("too large") from None
    if not math.isfinite(number):
        raise ValueError("not finite")
    return number


def _boolean(raw: object) -> bool:
    if isinstance(raw, bool):
        return raw
    word = str(raw).lower() if isinstance(raw, int | str) else ""
    if word not in _TRUE | _FALSE:
        raise ValueError("neither true nor false")
    return word in _TRUE


def _parts(raw: object) -> list[object]:
    """Elements of a list: of TOML, or separated by commas in text. A number alone is a list of one."""
    if isinstance(raw, str):
        return [part.strip() for part in raw.split(",") if part.strip()]
    if isinstance(raw, int) and not isinstance(raw, bool):
        return [raw]
    if not isinstance(raw, list):
        raise ValueError("not a list")
    return raw


def _text(raw: object) -> str:
    if not isinstance(raw, str):
        raise ValueError("not text")
    return raw


def _text_or_number(raw: object) -> str:
    return str(raw) if isinstance(raw, int) and not isinstance(raw, bool) else _text(raw)


def _choice(row: Setting, text: str) -> str:
    for choice in row.choices:
        if text == choice or (row.any_case and text.lower() == choice.lower()):
            return choice
    raise ValueError("not one of the choices")
