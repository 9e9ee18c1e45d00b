"""Goal: a batch is committed, dropped or refused by the last record of its key, and each refusal says what to do."""

from __future__ import annotations

import pytest

from client_stub.spark.exactly_once.commit_record import RESTARTED, CommitRecord, key_of, unpack
from client_stub.spark.exactly_once.decision import Batch, BatchRefused, Decision, decide
from client_stub.spark.exactly_once.settings import read_exactly_once

SETTINGS = read_exactly_once({})
OFFSETS = {"0": {"orders": {"0": 17}}}


def batch(number: int, *, query: str = "q", run: str = "new") -> Batch:
    return Batch("0123456789abcdef", "orders", number, query, run)


def record(number: int, *, query: str = "q", run: str = "old") -> CommitRecord:
    return CommitRecord(number, query, run, 100, 4, ("orders",), OFFSETS)


@pytest.mark.parametrize(
    ("asked", "last", "decision"),
    [
        (batch(0), None, Decision.COMMIT),
        (batch(5), record(4), Decision.COMMIT),
        (batch(5), record(2), Decision.COMMIT),  # batches without rows have no record
        (batch(5), record(5), Decision.REPLAY),
        (batch(0), record(0), Decision.REPLAY),
        (batch(0, query=""), record(0, query=""), Decision.REPLAY),  # a batch job with a job.id
        (batch(5), record(4, run="new"), Decision.COMMIT),
        (batch(7), record(6, query="", run=RESTARTED), Decision.COMMIT),  # after txn restart --from 7
        (batch(0, query=""), record(-1, query="", run=RESTARTED), Decision.COMMIT),
    ],
)
def test_batch_is_committed_or_dropped(asked: Batch, last: CommitRecord | None, decision: Decision) -> None:
    assert decide(asked, last, SETTINGS) is decision


@pytest.mark.parametrize(
    ("asked", "last", "text"),
    [
        (batch(3), None, "batch 3 has no commit record before it.*txn restart 0123456789abcdef --from 3"),
        (
            batch(3),
            record(4),
            "batch 3 is older than the last committed batch 4; the checkpoint was rolled back",
        ),
        (
            batch(3),
            record(3, run="new"),
            "already written with sink.id orders in this run.*own option sink.id",
        ),
        (
            batch(0, query="other"),
            record(0),
            r"the checkpoint is new.*last batch is 0, which ended at offsets .*\"orders\": {\"0\": 17}.*txn restart",
        ),
        (
            batch(0),
            record(0, query=""),
            "job.id has the history of a batch job, and this is a stream: give it a job.id of its own",
        ),
        (
            batch(0, query=""),
            record(0),
            "job.id has the history of a stream, and this write is not in one.*another thread.*own",
        ),
    ],
)
def test_batch_is_refused(asked: Batch, last: CommitRecord | None, text: str) -> None:
    with pytest.raises(BatchRefused, match=text) as refused:
        decide(asked, last, SETTINGS)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(
    ("options", "command"),
    [
        ({"transactional.id.prefix": "team.a"}, "txn restart team.a.0123456789abcdef"),
        ({"commits.topic": "commits"}, "txn restart 0123456789abcdef --commits-topic commits"),
        (
            {"transactional.id.prefix": "two words", "commits.topic": "c"},
            "txn restart 'two words.0123456789abcdef' --commits-topic c",
        ),
    ],
)
def test_command_of_a_refusal_names_what_is_no_default(options: dict[str, str], command: str) -> None:
    for asked, last, more in ((batch(3), None, " --from 3"), (batch(0, query="other"), record(0), "")):
        with pytest.raises(BatchRefused, match=command + more):
            decide(asked, last, read_exactly_once(options))


@pytest.mark.parametrize("each", [record(3), CommitRecord(0, "", "r", 0, 1)])
def test_record_is_read_as_it_was_written(each: CommitRecord) -> None:
    assert unpack(each.pack()) == each


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (b"", "cannot be read"),
        (b"[]", "cannot be read"),
        (b'{"version":1}', "cannot be read"),
        (b'{"version":1,"batch":"x","query":"","run":"","rows":0,"tasks":0,"topics":[]}', "cannot be read"),
        (b'{"version":2,"batch":4}', "has version 2: upgrade"),
    ],
)
def test_what_is_no_record_is_refused(value: bytes, text: str) -> None:
    with pytest.raises(ValueError, match=text):
        unpack(value)


def test_sinks_of_one_query_have_different_keys() -> None:
    keys = {key_of(query, sink) for query in ("a", "b", "ab") for sink in ("", "b", "orders")}
    assert len(keys) == 9
    assert all(len(key) == 16 for key in keys)
