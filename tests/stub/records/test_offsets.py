"""Offsets of a transaction: each that Kafka has no field for is refused by name, at its limit and one beyond."""

from __future__ import annotations

from typing import Any

import pytest

from client_stub.records.offsets import GroupMetadata, OffsetToCommit, checked_group, checked_offsets

INT_MAX, LONG_MAX = (1 << 31) - 1, (1 << 63) - 1


@pytest.mark.parametrize(
    ("entry", "name"),
    [
        (("in", INT_MAX + 1, 0), "partition"),
        (("in", -1, 0), "partition"),
        (("in", True, 0), "partition"),
        (("in", 0, LONG_MAX + 1), "offset"),
        (("in", 0, -1), "offset"),
        (("in", 0, 0, INT_MAX + 1), "leader_epoch"),
        (("in", 0, 0, -2), "leader_epoch"),
        (("x" * 250, 0, 0), "topic"),
        (("in", 0, 0, -1, "x" * 32_768), "metadata"),
        (("in", 0, 0, -1, "\u20ac" * 10_923), "metadata"),
    ],
)
def test_offset_out_of_range_is_refused_by_name(entry: tuple[object, ...], name: str) -> None:
    with pytest.raises(ValueError, match=name):
        checked_offsets([entry])


def test_metadata_that_is_no_text_is_refused() -> None:
    with pytest.raises(TypeError, match="metadata of in is a text"):
        checked_offsets([("in", 0, 0, -1, b"bytes")])


def test_largest_offset_is_taken() -> None:
    largest = OffsetToCommit("x" * 249, INT_MAX, LONG_MAX, INT_MAX, "x" * 32_767)
    assert checked_offsets([largest]) == [largest]


@pytest.mark.parametrize(
    ("group", "name"),
    [
        (GroupMetadata("g" * 769), "768"),
        (GroupMetadata("g" * 300, member="m" * 300, instance="i" * 169), "768"),
        (GroupMetadata("g", INT_MAX + 1), "generation"),
        (GroupMetadata("g", -2), "generation"),
        (GroupMetadata(""), "id"),
    ],
)
def test_group_out_of_range_is_refused_by_name(group: GroupMetadata, name: str) -> None:
    with pytest.raises(ValueError, match=name):
        checked_group(group)


def test_largest_group_is_taken() -> None:
    largest = GroupMetadata("g" * 300, INT_MAX, "m" * 300, "i" * 168)
    assert checked_group(largest) == largest


@pytest.mark.parametrize(
    ("wrong", "text"),
    [
        (None, "offsets are .* not NoneType"),
        ("in", "offsets are .* not str"),
        (5, "offsets are .* not int"),
        ({"in": 17}, "'in' is no entry"),
        ({("in",): 17}, r"\('in', 17\) is no entry"),
        ([("in", 0)], "is no entry"),
        ([5], "5 is no entry"),
        ([("in", 0, 1, -1, "", 7)], "is no entry"),
        ({("\udc80", 0): 1}, "half a character"),
        ([OffsetToCommit("in", 0, 1, -1, "\udc80")], "half a character"),
    ],
)
def test_offsets_of_another_form_are_named(wrong: Any, text: str) -> None:
    with pytest.raises((TypeError, ValueError), match=text):
        checked_offsets(wrong)


def test_group_that_is_no_text_is_named() -> None:
    with pytest.raises(ValueError, match="half a character"):
        checked_group("\udc80")
