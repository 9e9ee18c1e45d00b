"""FailureTally: one row for each topic and error, bounded, taken once."""

from __future__ import annotations

from client_stub.contract.wire import Persistence
from sidecar.common.control import FailedRecords, FailureRow
from sidecar.common.control_codec import ControlDecoder, encode_message
from sidecar.worker.outcomes.failure_tally import OTHER_TOPICS, ROWS_MAX, FailureTally


def test_rows_add_up_and_travel() -> None:
    tally = FailureTally()
    assert tally.take() is None
    tally.note("a", 29, "no", Persistence.NOT_PERSISTED, 3, "web")
    tally.note("a", 29, "still no", Persistence.NOT_PERSISTED, 4, None)
    tally.note("a", 29, "", Persistence.POSSIBLY_PERSISTED, 1, "web")
    report = tally.take()
    assert report == FailedRecords(
        (
            FailureRow("a", 29, "still no", Persistence.NOT_PERSISTED, 7, ""),
            FailureRow("a", 29, "", Persistence.POSSIBLY_PERSISTED, 1, "web"),
        )
    )
    assert tally.take() is None
    assert ControlDecoder().feed(encode_message(report)) == [report]


def test_topics_beyond_the_bound_are_counted_together() -> None:
    tally = FailureTally()
    for number in range(ROWS_MAX + 10):
        tally.note(f"t{number}", 29, "", Persistence.NOT_PERSISTED, 2, "web")
    report = tally.take()
    assert report is not None and len(report.rows) == ROWS_MAX + 1
    assert report.rows[-1] == FailureRow(OTHER_TOPICS, 29, "", Persistence.NOT_PERSISTED, 20, "web")
