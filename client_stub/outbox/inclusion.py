"""Inclusion: the stages that a transaction includes, from include() on; and their tokens, checked."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final, NamedTuple

import msgpack

from client_stub.contract.wire import STAGE_TOKEN_BYTES_MAX

TOKENS_MAX: Final = 1_024
"""A worker has no more stages."""


class IncludedRange(NamedTuple):
    """The included records of a partition. Other transactions' records may lie between the first and the last."""

    first_offset: int
    last_offset: int
    rows: int


class Inclusion:
    """What include() has included. The caller's threads share it."""

    def __init__(self, rows: int, bytes_: int) -> None:
        self.rows = rows
        self.bytes = bytes_
        self.partitions: Mapping[tuple[str, int], IncludedRange] = {}
        """(topic, partition) → the offsets of its included records. Empty until the commit, and where a daemon that
        was killed meanwhile no longer knows them.
        """

    def committed(self, partitions: Iterable[Iterable[Any]] | None) -> None:
        """Note what the answer to the commit has."""
        self.partitions = {
            (topic, partition): IncludedRange(first, last, rows)
            for topic, partition, first, last, rows in partitions or ()
        }

    def __repr__(self) -> str:
        return f"<Inclusion: {self.rows} records, {self.bytes} bytes>"


def packed_tokens(tokens: object) -> tuple[int, bytes]:
    """(how many, second frame) of TXN_INCLUDE and STAGES_DROP. Raises TypeError and ValueError."""
    if isinstance(tokens, bytes | str) or not isinstance(tokens, Iterable):
        raise TypeError(
            f"tokens are a list of what seal() has returned, not {type(tokens).__name__}: write [token]."
        )
    found = list(tokens)
    for number, token in enumerate(found):
        if not isinstance(token, bytes):
            raise TypeError(
                f"tokens[{number}] is {type(token).__name__}, not the bytes that seal() has returned."
            )
        if not 0 < len(token) <= STAGE_TOKEN_BYTES_MAX:
            raise ValueError(f"tokens[{number}] has {len(token)} bytes: it is no token of seal().")
    if len(found) > TOKENS_MAX:
        raise ValueError(f"{len(found)} tokens: a daemon's worker has {TOKENS_MAX} stages at most.")
    return len(found), msgpack.packb(found)
