"""Offsets of a consumer that a transaction commits, and the group they belong to, as their frames of TXN_OFFSETS.

send_offsets_to_transaction() calls it, in the caller's thread.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple, TypeAlias

import msgpack

NO_GENERATION = -1


class GroupMetadata(NamedTuple):
    """A consumer's group, and its place in it (Kafka's ConsumerGroupMetadata). Only ``group`` is needed; the others let
    the broker refuse a consumer that is no member any more.
    """

    group: str
    generation: int = NO_GENERATION
    member: str = ""
    instance: str | None = None


class OffsetToCommit(NamedTuple):
    """The offset of the next record to read of a partition. ``leader_epoch`` is -1 where it is not known."""

    topic: str
    partition: int
    offset: int
    leader_epoch: int = -1
    metadata: str = ""


Offsets: TypeAlias = Mapping[tuple[str, int], int] | Iterable[OffsetToCommit]
"""``{("orders", 0): 17}``, or a list with more of each."""


def checked_offsets(offsets: Any) -> list[OffsetToCommit]:
    """``offsets`` as a list. Raises TypeError and ValueError, which name the entry."""
    entries: list[OffsetToCommit] = []
    given = offsets.items() if isinstance(offsets, Mapping) else offsets
    for each in given:
        if isinstance(offsets, Mapping):
            (topic, partition), offset = each
            entry = OffsetToCommit(topic, partition, offset)
        else:
            entry = OffsetToCommit(*each)
        if not isinstance(entry.topic, str) or not entry.topic:
            raise TypeError(f"offsets: a topic is a text, not {entry.topic!r}.")
        for name, number in (("partition", entry.partition), ("offset", entry.offset)):
            if type(number) is not int or number < 0:
                raise ValueError(
                    f"offsets: the {name} of {entry.topic} is a number from 0 on, not {number!r}."
                )
        entries.append(entry)
    return entries


def checked_group(group: Any) -> GroupMetadata:
    """``group`` as GroupMetadata. Raises TypeError and ValueError."""
    if isinstance(group, str):
        group = GroupMetadata(group)
    if not isinstance(group, GroupMetadata):
        raise TypeError(f"group is the group's id or client_stub.GroupMetadata, not {type(group).__name__}.")
    if not group.group:
        raise ValueError("group: a group has an id.")
    return group


def offset_frames(offsets: list[OffsetToCommit], group: GroupMetadata) -> tuple[tuple[Any, ...], bytes]:
    """(fields of the first frame after the request, second frame) of TXN_OFFSETS."""
    rows = [list(each) for each in offsets]
    return (group.group, group.generation, group.member, group.instance), msgpack.packb(rows)
