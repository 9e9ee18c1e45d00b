"""Goal: txn verify takes the batch that was committed last, also where a history has begun anew."""

from __future__ import annotations

from client_stub.spark.exactly_once.commit_record import RESTARTED, CommitRecord
from sidecar.doctor.batch_check import History
from sidecar.protocol.fetched_batches import fetched_batches
from tests.controller.log_bytes import ABORT, COMMIT, batch, marker

KEY = b"0123456789abcdef"


def history(*transactions: tuple[CommitRecord, int]) -> History:
    """Of these records, each in a transaction that ends so."""
    found = History(KEY)
    data = b""
    for number, (record, kind) in enumerate(transactions):
        data += batch(2 * number, [(KEY, record.pack()), (b"other", b"")], producer_id=number)
        data += marker(2 * number + 1, number, kind)
    for each in fetched_batches(data):
        found.read(each)
    return found


def record(number: int, run: str = "run") -> CommitRecord:
    return CommitRecord(number, "query", run, 10, 2, ("orders",))


def test_batch_of_a_history_that_began_anew_is_the_last_one() -> None:
    found = history(
        (record(0), COMMIT),
        (record(1), COMMIT),
        (record(-1, RESTARTED), COMMIT),
        (record(0, "again"), COMMIT),
        (record(1, "again"), ABORT),
    )
    last = list(found.committed.values())[-1]
    assert (last.record, last.identity) == (record(0, "again"), (3, 0))
    assert found.committed[1].identity == (1, 0)
