"""Offsets of a consumer that a transaction commits, and the group they belong to, as their frames of TXN_OFFSETS.

send_offsets_to_transaction() calls it, in the caller's thread.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple, TypeAlias

import msgpack

from client_stub.contract.wire import GROUP_BYTES_MAX, OFFSET_METADATA_BYTES_MAX, TOPIC_BYTES_MAX
from client_stub.records.arguments import as_utf8
from client_stub.records.record_fields import INT_MAX, LONG_MAX

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
    for entry in _entries_of(offsets):
        if not isinstance(entry.topic, str) or not entry.topic:
            raise TypeError(f"offsets: a topic is a text, not {entry.topic!r}.")
        if len(as_utf8(entry.topic, f"offsets: the topic {entry.topic!a:.60}")) > TOPIC_BYTES_MAX:
            raise ValueError(
                f"offsets: a topic has {TOPIC_BYTES_MAX} bytes at most, not {entry.topic!r:.300}."
            )
        for name, number, least, most in (
            ("partition", entry.partition, 0, INT_MAX),
            ("offset", entry.offset, 0, LONG_MAX),
            ("leader_epoch", entry.leader_epoch, -1, INT_MAX),
        ):
            if type(number) is not int or not least <= number <= most:
                raise ValueError(
                    f"offsets: the {name} of {entry.topic} is a number from {least} to {most}, not {number!r:.40}."
                )
        metadata: object = entry.metadata
        if metadata is not None and not isinstance(metadata, str):
            raise TypeError(
                f"offsets: the metadata of {entry.topic} is a text, not {type(metadata).__name__}."
            )
        what = f"offsets: the metadata of {entry.topic}"
        if metadata is not None and len(as_utf8(metadata, what)) > OFFSET_METADATA_BYTES_MAX:
            raise ValueError(
                f"offsets: the metadata of {entry.topic} has {OFFSET_METADATA_BYTES_MAX} bytes at most."
            )
        entries.append(entry)
    return entries


def _entries_of(offsets: Any) -> Iterator[OffsetToCommit]:
    if isinstance(offsets, Mapping):
        given = [(*key, offset) if isinstance(key, tuple) else key for key, offset in offsets.items()]
    elif isinstance(offsets, Iterable) and not isinstance(offsets, str | bytes):
        given = list(offsets)
    else:
        raise TypeError(
            f'offsets are {{("orders", 0): 17}} or a list of OffsetToCommit, not {type(offsets).__name__}.'
        )
    for each in given:
        if not isinstance(each, tuple) or not 3 <= len(each) <= 5:
            raise TypeError(
                f'offsets: {each!r:.100} is no entry: a dict has ("orders", 0): 17, a list has OffsetToCommit.'
            )
        yield OffsetToCommit(*each)


def checked_group(group: Any) -> GroupMetadata:
    """``group`` as GroupMetadata. Raises TypeError and ValueError."""
    if isinstance(group, str):
        group = GroupMetadata(group)
    if not isinstance(group, GroupMetadata):
        raise TypeError(f"group is the group's id or client_stub.GroupMetadata, not {type(group).__name__}.")
    texts: tuple[object, ...] = (group.group, group.member, group.instance or "")
    if not all(isinstance(each, str) for each in texts):
        raise TypeError("group: the group's id, member and instance are texts.")
    if not group.group:
        raise ValueError("group is empty: give the id of the group whose offsets these are.")
    if sum(len(as_utf8(str(each), "group")) for each in texts) > GROUP_BYTES_MAX:
        raise ValueError(f"group: its id, member and instance have {GROUP_BYTES_MAX} bytes at most together.")
    generation: object = group.generation
    if type(generation) is not int or not NO_GENERATION <= generation <= INT_MAX:
        raise ValueError(
            f"group: its generation is a number from {NO_GENERATION} to {INT_MAX}, not {generation!r:.40}."
        )
    return group


def offset_frames(offsets: list[OffsetToCommit], group: GroupMetadata) -> tuple[tuple[Any, ...], bytes]:
    """(fields of the first frame after the request, second frame) of TXN_OFFSETS."""
    rows = [list(each) for each in offsets]
    return (group.group, group.generation, group.member, group.instance), msgpack.packb(rows)
