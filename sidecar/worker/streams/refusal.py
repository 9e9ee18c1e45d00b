"""Refusal: why the records of a submission fail at the door."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from client_stub.wire import LocalCode


class Refusal(NamedTuple):
    """Why the records of a submission are not taken, though its seq is used: they fail, and what follows goes on."""

    code: LocalCode
    text: str
