"""Setting: one row of the settings table, with the type and bounds of its values.

The tables of settings are made of it, once at the import.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final

Value = int | float | bool | str | list[Any] | None
"""A list has str, or int where its kind is INTEGERS."""

INT_MAX: Final = 2**31 - 1
LONG_MAX: Final = 2**63 - 1


class ValueKind(StrEnum):
    """Type of a setting. The enum's value is the word for it in error texts and docs."""

    INTEGER = "whole number"
    NUMBER = "number"
    BOOLEAN = "true or false"
    TEXT = "text"
    LIST = "list"
    INTEGERS = "list of whole numbers"
    IDS = "list of names or numbers"


@dataclass(frozen=True, slots=True)
class Setting:
    """One row. ``default`` None means unset: it follows from other settings, or the user must set it."""

    name: str
    kind: ValueKind
    default: Value
    doc: str
    least: int | float | None = None
    most: int | float | None = None
    choices: tuple[str, ...] = ()
    any_case: bool = False
    """Choices are compared without regard to case, as Kafka does for this setting."""
    secret: bool = False
    """Never shown, neither by `config show` nor in an error text. The setting ``NAME.file`` may name a file with it."""
    is_path: bool = False
    """``${VARIABLE}`` means an environment variable (:mod:`sidecar.config.secret_sources`)."""

    @property
    def table(self) -> str:
        head = self.name.split(".", 1)[0]
        return head if head in OWN_TABLES else "kafka"

    @property
    def key(self) -> str:
        """The name inside its TOML table."""
        return self.name if self.table == "kafka" else self.name.split(".", 1)[1]

    @property
    def is_size(self) -> bool:
        """Whether it counts bytes, so that "64KB" and "128MB" are accepted."""
        return self.kind is ValueKind.INTEGER and (
            self.name in SIZES or self.name.endswith(("bytes", "bytes.per.second"))
        )

    def bounds_text(self) -> str:
        """``one of a, b`` or ``0 … 64`` or ""."""
        if self.choices:
            return "one of " + ", ".join(choice or '""' for choice in self.choices)
        if self.least is None and self.most is None:
            return ""
        if self.most is None or self.most >= INT_MAX:
            return f"at least {self.least}"
        return f"{self.least} … {self.most}"


SIZES: Final = frozenset({"batch.size", "buffer.memory", "max.request.size"})
"""Settings that count bytes although their names do not say so."""
OWN_TABLES: Final = ("daemon", "pool", "http", "recover", "dead_letters", "log")


def integer(name: str, default: int | None, least: int, most: int, doc: str) -> Setting:
    """A row for a whole number from ``least`` to ``most``."""
    return Setting(name, ValueKind.INTEGER, default, doc, least, most)


def choice(
    name: str, default: str | None, choices: tuple[str, ...], doc: str, *, any_case: bool = False
) -> Setting:
    """A row for one of the words in ``choices``."""
    return Setting(name, ValueKind.TEXT, default, doc, choices=choices, any_case=any_case)
