"""sasl.jaas.config: one entry of a JAAS file, as copied from Java clients (Kafka: JaasConfig).

``sasl_rules`` calls it, while the configuration is loaded.

    org.apache.kafka.common.security.plain.PlainLoginModule required username="alice" password="a\\"b";
    └ module                                               └ flag   └ options, in quotes or bare      └ may be missing

Error texts give the character number and never quote the entry, because it has secrets.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final, NamedTuple

JAAS_CHARACTERS_MAX: Final = 64 << 10

_FLAGS: Final = ("required", "requisite", "sufficient", "optional")
_SPACE: Final = re.compile(r"(?:\s|//[^\n]*|/\*.*?\*/)*", re.DOTALL)
_WORD: Final = re.compile(r"[^\s\"';=]+")
_ESCAPES: Final = {"a": "\a", "b": "\b", "f": "\f", "n": "\n", "r": "\r", "t": "\t", "v": "\v"}
_OCTAL: Final = re.compile(r"[0-3]?[0-7]{1,2}")


class JaasEntry(NamedTuple):
    """A JAAS entry. ``module`` is the class name without its package."""

    module: str
    options: Mapping[str, str]


class JaasError(ValueError):
    """The entry cannot be read. The text is the end of a sentence."""


def read_jaas(text: str) -> JaasEntry:
    """Parse the one entry in ``text``. Raises JaasError."""
    if len(text) > JAAS_CHARACTERS_MAX:
        raise JaasError(f"it has over {JAAS_CHARACTERS_MAX >> 10} Ki characters")
    reader = _JaasReader(text)
    if reader.at_end():
        raise JaasError("it is empty; it begins with the class of a login module")
    module = reader.word("the class of a login module")
    flag = reader.word("the flag, such as required")
    if flag.lower() not in _FLAGS:
        raise JaasError(f"there is no flag after the login module; write one of {', '.join(_FLAGS)}")
    options: dict[str, str] = {}
    while not reader.at_end():
        if reader.take(";"):
            if not reader.at_end():
                raise JaasError(f"there is more than one entry (character {reader.position + 1}); keep one")
            break
        name = reader.word("the name of an option, or ;")
        if not reader.take("="):
            raise JaasError(f"there is no = after the option {name!a:.40} (character {reader.position + 1})")
        if name in options:
            raise JaasError(f"the option {name!a:.40} is there twice")
        options[name] = reader.value(name)
    return JaasEntry(module.rpartition(".")[2], options)


class _JaasReader:
    def __init__(self, text: str) -> None:
        self._text = text
        self.position = 0

    def at_end(self) -> bool:
        found = _SPACE.match(self._text, self.position)
        assert found is not None
        self.position = found.end()
        return self.position == len(self._text)

    def take(self, mark: str) -> bool:
        if self.at_end() or self._text[self.position] != mark:
            return False
        self.position += 1
        return True

    def word(self, what: str) -> str:
        if self.at_end():
            raise JaasError(f"it ends where {what} is expected")
        found = _WORD.match(self._text, self.position)
        if found is None:
            raise JaasError(f"expected {what} at character {self.position + 1}")
        self.position = found.end()
        return found.group()

    def value(self, name: str) -> str:
        if not self.at_end() and self._text[self.position] in "\"'":
            return self._quoted(name)
        return self.word(f"the value of {name!a:.40}")

    def _quoted(self, name: str) -> str:
        quote, start = self._text[self.position], self.position + 1
        at, out = start, list[str]()
        while at < len(self._text):
            each = self._text[at]
            if each == quote:
                self.position = at + 1
                return "".join(out)
            if each == "\n":
                break
            at += 1
            if each == "\\" and at < len(self._text):
                octal = _OCTAL.match(self._text, at)
                if octal is not None:
                    out.append(chr(int(octal.group(), 8)))
                    at = octal.end()
                else:
                    out.append(_ESCAPES.get(self._text[at], self._text[at]))
                    at += 1
            else:
                out.append(each)
        raise JaasError(f"the quote around the value of {name!a:.40} (character {start}) is not closed")
