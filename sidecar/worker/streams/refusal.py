"""Refusal: why the records of a submission fail without being stored."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from client_stub.contract.wire import LocalCode


class Refusal(NamedTuple):
    """Code and text with which all records of a submission fail. Its sequence number is used, so later ones are not
    affected.
    """

    code: LocalCode
    text: str
