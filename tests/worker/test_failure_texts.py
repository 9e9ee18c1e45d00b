"""Goal: the text of a failure names the partitions at fault, whatever is in the entry, and reads little of it."""

from __future__ import annotations

import msgpack
import pytest

from sidecar.worker.outcomes.failure_texts import RECORDS_READ_MAX, invalid_partition_text

RANGE = "not in the range [0...6) of topic orders."


def payload(*partitions: int | None) -> bytes:
    return b"".join(msgpack.packb([b"\xff", b"v", [["h", b"\xff"]], each]) for each in partitions)


@pytest.mark.parametrize(
    ("partitions", "indexes", "words"),
    [
        ([9], [0], f"Invalid partition given with record: 9 is {RANGE}"),
        ([0, 9, 1, 9], [1, 3], f"Invalid partition given with record: 9 is {RANGE}"),
        ([9, 0, 7], [0, 2], f"Invalid partitions given with records: 7, 9 are {RANGE}"),
        (
            [*range(6, 16)],
            [*range(10)],
            f"Invalid partitions given with records: 6, 7, 8, 9, 10 and more are {RANGE}",
        ),
        ([None], [0], f"Invalid partition given with record: it is {RANGE}"),
    ],
)
def test_the_partitions_of_the_failed_records_are_named(
    partitions: list[int | None], indexes: list[int], words: str
) -> None:
    assert invalid_partition_text("orders", 6, payload(*partitions), indexes) == words


def test_only_the_first_records_of_an_entry_are_read() -> None:
    many = payload(*[9] * (RECORDS_READ_MAX + 1))
    text = invalid_partition_text("orders", 6, many, range(RECORDS_READ_MAX + 1))
    assert text == f"Invalid partitions given with records: 9 and more are {RANGE}"
    assert invalid_partition_text("orders", 6, many, [RECORDS_READ_MAX]).endswith(f": it is {RANGE}")


@pytest.mark.parametrize("broken", [b"", b"\x94\xc0", b"\x07", b"\x93\xc0\xc0\xc0"])
def test_a_payload_that_cannot_be_read_is_no_second_failure(broken: bytes) -> None:
    assert (
        invalid_partition_text("orders", 6, broken, [0])
        == f"Invalid partition given with record: it is {RANGE}"
    )


def test_a_worker_without_metadata_does_not_say_that_the_topic_has_none() -> None:
    text = invalid_partition_text("orders", 0, payload(9), [0])
    assert text == "Invalid partition given with record: 9 is not a partition of topic orders."


def test_a_partition_beyond_those_a_word_can_hold_is_named() -> None:
    start = "Invalid partition given with record: 65280 is not in the range [0...65280) of topic wide"
    assert invalid_partition_text("wide", 65_280, payload(65_280), [0]) == f"{start}."
    text = invalid_partition_text("wide", 65_281, payload(65_280), [0])
    assert text == f"{start}: the daemon reaches no more of its 65281 partitions."
