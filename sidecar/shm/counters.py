"""ONE table of counter rows; the place of a row in the table is its place in every slot's block.

``accepted = delivered + failed + dead lettered + held``, at every moment a reader can see: what belongs to one step
of the ledger is added in one write (``Counters.add``).

Rows are only appended: a reader of another version reads what it knows.
"""

from __future__ import annotations

from typing import Final, Literal, NamedTuple

from sidecar.shm.layout import COUNTER_ROWS_MAX

Kind = Literal["counter", "gauge"]


class CounterRow(NamedTuple):
    """``name`` without the ``kafka_sidecar_`` prefix, units in it; counters end in ``_total``."""

    name: str
    kind: Kind
    help: str


COUNTER_ROWS: Final = (
    CounterRow("records_accepted_total", "counter", "Records accepted into the journal."),
    CounterRow("records_delivered_total", "counter", "Records that a broker acknowledged."),
    CounterRow("records_failed_total", "counter", "Records whose client acknowledged that they failed."),
    CounterRow(
        "records_dead_lettered_total",
        "counter",
        "Failed records that went to the dead letter spool, as their client was gone.",
    ),
    CounterRow(
        "records_possibly_persisted_total",
        "counter",
        "Failed records that a broker may have appended all the same.",
    ),
    CounterRow("record_errors_total", "counter", "Records that a broker rejected one by one."),
    CounterRow("bytes_accepted_total", "counter", "Payload bytes accepted from clients."),
    CounterRow("bytes_sent_total", "counter", "Bytes of record batches sent to brokers, retries included."),
    CounterRow("submissions_total", "counter", "Submissions accepted from clients."),
    CounterRow("submissions_refused_total", "counter", "Submissions refused for good."),
    CounterRow("malformed_frames_total", "counter", "Frames from clients that could not be read."),
    CounterRow("frames_resent_total", "counter", "Submissions that a client had to send again."),
    CounterRow(
        "holds_total", "counter", "Times a stream was held back for lack of pages, share or ring room."
    ),
    CounterRow("batches_sent_total", "counter", "Record batches sent to brokers, retries included."),
    CounterRow("batches_retried_total", "counter", "Record batches sent again."),
    CounterRow(
        "batches_split_total", "counter", "Record batches split because a broker found them too large."
    ),
    CounterRow("batches_expired_total", "counter", "Record batches that ran out of delivery.timeout.ms."),
    CounterRow("requests_total", "counter", "Produce requests sent."),
    CounterRow("request_errors_total", "counter", "Produce requests that got no answer."),
    CounterRow(
        "produce_throttle_ms_total", "counter", "Milliseconds for which brokers asked to be left alone."
    ),
    CounterRow("epoch_bumps_total", "counter", "Times a producer id or epoch was replaced."),
    CounterRow("sender_exceptions_total", "counter", "Exceptions inside the sender's loop; each is a bug."),
    CounterRow("callback_exceptions_total", "counter", "Exceptions while a fate was told; each is a bug."),
    CounterRow("outcomes_told_total", "counter", "Outcomes written to clients' rings."),
    CounterRow("clients_cut_total", "counter", "Clients cut because they did not read their outcomes."),
    CounterRow("stale_updates_refused_total", "counter", "Metadata pushes refused for an old epoch."),
    CounterRow("wakeups_total", "counter", "Turns of the worker's loop that had work."),
    CounterRow("buffer_exhausted_total", "counter", "Times a submission found no page free."),
    CounterRow("buffer_pages_taken", "gauge", "Pages of the pool that this worker holds."),
    CounterRow("buffer_waiters", "gauge", "Streams that wait for pages."),
    CounterRow("clients_connected", "gauge", "Clients attached now."),
    CounterRow("in_flight_requests", "gauge", "Produce requests without an answer yet."),
    CounterRow("incomplete_batches", "gauge", "Record batches without a fate yet."),
    CounterRow("broker_connections", "gauge", "Open connections to brokers."),
    CounterRow("metadata_version", "gauge", "Version of the metadata snapshot in use."),
    CounterRow("topics_waiting", "gauge", "Topics that wait for metadata."),
    CounterRow("lane_rows_full_total", "counter", "Sequences that found no row in the slot's full table."),
    CounterRow("adoptions_total", "counter", "Times a worker took over what a dead one left in its slot."),
    CounterRow("records_adopted_total", "counter", "Records without an end that were taken over so."),
    CounterRow(
        "records_resent_unknown_total",
        "counter",
        "Records sent again although their broker no longer knew whether it has them: a few may be doubled.",
    ),
    CounterRow(
        "records_held",
        "gauge",
        "Records accepted and not ended: accepted = delivered + failed + dead lettered + held.",
    ),
    CounterRow(
        "dead_letters_waiting", "gauge", "Failed submissions of gone clients that the spool cannot take now."
    ),
    CounterRow("dead_letter_errors_total", "counter", "Times the dead letter spool could not be written."),
    CounterRow(
        "dead_letters_dropped_total",
        "counter",
        "Records in the oldest spool files, removed for room (dead_letters.when_full = drop_oldest).",
    ),
    CounterRow("accept_log_commits_total", "counter", "Groups of accepted records that were synced to disk."),
    CounterRow(
        "accept_log_errno",
        "gauge",
        "Error number with which the disk of pool.path refuses accepted records; 0: it takes them.",
    ),
    CounterRow(
        "produce_throttle_avg_ms",
        "gauge",
        "Throttle time that brokers asked for, averaged over the answers of the last 30 to 60 s.",
    ),
    CounterRow("produce_throttle_max_ms", "gauge", "The longest such throttle time."),
    CounterRow(
        "poison_submissions_total",
        "counter",
        "Submissions and batches set aside because they were in work at three deaths of a worker.",
    ),
    CounterRow(
        "accept_errors_total", "counter", "Messages that the worker failed to take by itself; each is a bug."
    ),
    CounterRow(
        "client_connections_closed_total",
        "counter",
        "Connections of clients that the worker closed: no ZeroMQ, too slow, too large, or beyond a bound.",
    ),
)

ROW_INDEX: Final = {row.name: index for index, row in enumerate(COUNTER_ROWS)}
assert len(ROW_INDEX) == len(COUNTER_ROWS) <= COUNTER_ROWS_MAX
