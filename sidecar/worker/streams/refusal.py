"""Refusals: why the records of a submission fail without being stored, and the error for a frame that is no frame."""

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


class MalformedFrame(ValueError):
    """A frame that no valid stub sends; the fault is its sender's. Raised before any state is changed. The frame is
    counted, and answered with REFUSED.
    """
