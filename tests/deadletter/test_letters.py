"""Goal: what comes back from a line of the spool is the record as its sender gave it, whatever it was."""

from __future__ import annotations

import base64
import json
from types import SimpleNamespace
from typing import Any

import msgpack
import pytest
from hypothesis import given
from hypothesis import strategies as st

from client_stub.contract.wire import PARTITIONER_SHIFT, PARTITIONERS, LocalCode, Persistence, SubmitFlag
from sidecar.deadletter.letters import Undelivered, lines, parse
from tests.deadletter.groups import group

blobs = st.none() | st.binary(max_size=40)
records = st.tuples(
    blobs,
    blobs,
    st.none() | st.lists(st.tuples(st.text(max_size=9), blobs).map(list), max_size=3),
    st.none() | st.integers(0, 99),
    st.none() | st.integers(0, 1 << 50),
).map(list)


@given(st.lists(records, min_size=1, max_size=8), st.data())
def test_every_record_comes_back_whole(given_records: list[list[object]], data: st.DataObject) -> None:
    some = sorted(data.draw(st.sets(st.integers(0, len(given_records) - 1), min_size=1)))
    letters = [parse(line) for line in lines([group(given_records, indexes=some)], 5)]
    assert [letter.sender for letter in letters] == [f"{'ab' * 20}/3/1/{index}" for index in some]
    assert [letter.identity for letter in letters] == [f"{group([]).name.hex()}/{index}" for index in some]
    for letter, index in zip(letters, some, strict=True):
        key, value, headers, partition, timestamp_ms = given_records[index]
        assert (letter.key, letter.value, letter.partition) == (key, value, partition)
        assert [list(pair) for pair in letter.headers] == (headers or [])
        assert letter.timestamp_ms == (1_700_000_000_000 if timestamp_ms is None else timestamp_ms)
        assert letter.is_readable


@pytest.mark.parametrize("number", range(len(PARTITIONERS) + 1))
def test_the_partitioner_that_its_client_named_is_kept(number: int) -> None:
    """Otherwise a replay would put the key elsewhere."""
    entry: Any = SimpleNamespace(
        flags=number << PARTITIONER_SHIFT | SubmitFlag.FIXED_PARTITIONS | 1, base_timestamp_ms=0
    )
    failed = group([[b"k", b"v"]])
    fields = {
        name: value
        for name, value in failed._asdict().items()
        if name not in ("sender", "client_name", "pid", "base_timestamp_ms", "payload", "partitioner")
    }
    made = Undelivered.of(entry, None, failed.payload, **fields)
    (line,) = lines([made], 5)
    assert ("partitioner" in json.loads(line)) is (number > 0)
    assert parse(line).partitioner == (PARTITIONERS[number - 1] if number else None)


def test_a_line_is_read_with_standard_tools() -> None:
    failed = group(
        [[b"k", "h\xe9llo".encode()]],
        partition=2,
        code=29,
        text="",
        persistence=Persistence.POSSIBLY_PERSISTED,
    )
    (line,) = lines([failed], 77)
    found = json.loads(line)
    assert line.count(b"\n") == 1
    assert base64.b64decode(found["value"]).decode() == "h\xe9llo"
    assert (found["error"], found["tried"], found["partition"]) == ("TOPIC_AUTHORIZATION_FAILED", 2, None)
    assert found["text"], "the error's own sentence when there was no other"
    assert (found["persisted"], found["failed_ms"], found["client"], found["pid"]) == (
        "possibly",
        77,
        "billing",
        4711,
    )


def test_from_the_first_unreadable_record_on_the_bytes_are_kept_raw() -> None:
    whole = msgpack.packb([b"k", b"v"])
    broken = group([], numbers=range(4), payload=whole + b"\xc1rest", indexes=[0, 1, 2, 3])
    first, second, *behind = [parse(line) for line in lines([broken], 1)]
    assert (first.key, first.is_readable) == (b"k", True)
    assert (second.value, second.is_readable) == (b"\xc1rest", False)
    assert [letter.is_readable for letter in behind] == [False, False]


def test_text_that_is_no_text_survives() -> None:
    payload = b"\x93\xc0\xc0\x91\x92\xa2\xff\xfe\xc0"  # a header's name that is not UTF-8
    (letter,) = [parse(line) for line in lines([group([], numbers=[0], payload=payload, indexes=[0])], 1)]
    assert letter.headers[0][0].encode("utf-8", "surrogateescape") == b"\xff\xfe"


def test_a_code_that_this_version_does_not_know_has_a_name_all_the_same() -> None:
    (line,) = lines([group([[None, b"v"]], code=31_999)], 1)
    assert parse(line).error == "ERROR_31999"
    (line,) = lines([group([[None, b"v"]], code=int(LocalCode.METADATA_TIMEOUT), text="")], 1)
    assert "TIMEOUT" in parse(line).error


@pytest.mark.parametrize(
    "line",
    [b"", b"{", b"[]", b'{"v": 2}', b'{"v": 1}', b'{"v":1,"id":"x","topic":"t","value":"%"}', b"\xff\xfe\n"],
)
def test_a_line_that_is_no_dead_letter_is_refused(line: bytes) -> None:
    with pytest.raises(ValueError, match=r"\w+"):
        parse(line)
