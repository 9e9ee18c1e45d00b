"""The only table of counter rows. The position of a row here is its position in every slot's block.

A reader always sees ``accepted = delivered + failed + dead lettered + aborted + held``: all rows that one event changes
are changed in one write (``Counters.add``).

Rows are only appended, so a reader of another version can read those it knows. A dropped row leaves None.
docs/metrics.md is printed from this table.
"""

from __future__ import annotations

from typing import Final, Literal, NamedTuple

from sidecar.shm.layout import COUNTER_ROWS_MAX

Kind = Literal["counter", "gauge"]


class CounterRow(NamedTuple):
    """``name`` without the ``kafka_sidecar_`` prefix; counters end in ``_total``. ``worry``: when an operator should
    look closer, and at what; "" if the value alone shows nothing.
    """

    name: str
    kind: Kind
    unit: str
    help: str
    worry: str = ""


_ORDER: Final[tuple[CounterRow | None, ...]] = (
    CounterRow("records_accepted_total", "counter", "records", "Records accepted into the journal."),
    CounterRow(
        "records_delivered_total",
        "counter",
        "records",
        "Records that a broker acknowledged.",
        "Its rate stays below that of `records_accepted_total`: the backlog (`records_held`) grows.",
    ),
    CounterRow(
        "records_failed_total",
        "counter",
        "records",
        "Records whose client acknowledged that they failed.",
        "Any growth: the clients' errors and the worker's log name the reason.",
    ),
    CounterRow(
        "records_dead_lettered_total",
        "counter",
        "records",
        "Failed records that went to the dead letter spool, as their client was gone.",
        "Any growth: `kafka-sidecar replay --dry-run` shows topics and reasons.",
    ),
    CounterRow(
        "records_possibly_persisted_total",
        "counter",
        "records",
        "Failed records that a broker may have appended.",
        "Any growth: a client that sends such a record again may duplicate it.",
    ),
    CounterRow(
        "record_errors_total",
        "counter",
        "records",
        "Records that a broker rejected one by one.",
        "Any growth: a producer sends records that its topic does not allow (no key, bad timestamp).",
    ),
    CounterRow("bytes_accepted_total", "counter", "bytes", "Payload bytes accepted from clients."),
    CounterRow(
        "bytes_sent_total",
        "counter",
        "bytes",
        "Bytes of Produce requests as they are sent, after compression, retries included.",
        "Far above `bytes_accepted_total`: batches are sent again and again.",
    ),
    CounterRow("submissions_total", "counter", "submissions", "Submissions accepted from clients."),
    CounterRow(
        "submissions_refused_total",
        "counter",
        "submissions",
        "Submissions that the daemon could not accept, so their records failed: larger than max.request.size or the "
        "pool allows, or because of an error of the daemon.",
        "Any growth: the client's error says which; with `accept_errors_total` growing as well it is a bug.",
    ),
    CounterRow(
        "malformed_frames_total",
        "counter",
        "messages",
        "Messages from clients that break the protocol.",
        "Any growth: a foreign or damaged client; the log names it.",
    ),
    CounterRow(
        "frames_resent_total",
        "counter",
        "submissions",
        "Submissions that were not taken and that their client sends again: their stream is held, or an earlier one "
        "is missing.",
        "Near the rate of `submissions_total`: clients push against a bound; see `holds_total`.",
    ),
    CounterRow(
        "holds_total",
        "counter",
        "holds",
        "Times a stream was held back: no free pages, over its share or rate, no room in the outcome ring, or the "
        "disk of pool.path refuses.",
        "Steady growth: callers wait in `send()`. Look at `buffer_pages_taken`, `topics_waiting` and the brokers.",
    ),
    CounterRow(
        "batches_sent_total", "counter", "batches", "Record batches sent to brokers, retries included."
    ),
    CounterRow(
        "batches_retried_total",
        "counter",
        "batches",
        "Record batches that are sent again after an error.",
        "More than a few percent of `batches_sent_total` outside of a broker's restart.",
    ),
    CounterRow(
        "batches_split_total",
        "counter",
        "batches",
        "Record batches split because a broker found them too large.",
        "Steady growth: the topic's `max.message.bytes` is below `batch.size`.",
    ),
    CounterRow(
        "batches_expired_total",
        "counter",
        "batches",
        "Record batches that ran out of delivery.timeout.ms.",
        "Any growth: a partition had no reachable leader, or the brokers were too slow, for that long.",
    ),
    CounterRow("requests_total", "counter", "requests", "Produce requests sent."),
    CounterRow(
        "request_errors_total",
        "counter",
        "requests",
        "Produce requests that got no answer: the connection was lost, or request.timeout.ms passed.",
        "Growth outside of a broker's restart.",
    ),
    CounterRow(
        "produce_throttle_ms_total",
        "counter",
        "milliseconds",
        "Throttle time that brokers asked for in their answers.",
        "Growth: a quota of the cluster is used up.",
    ),
    CounterRow(
        "epoch_bumps_total",
        "counter",
        "bumps",
        "Times a producer id or epoch was replaced.",
        "Steady growth: brokers forget producer ids, or batches expire again and again.",
    ),
    CounterRow(
        "sender_exceptions_total",
        "counter",
        "exceptions",
        "Exceptions inside the worker's loop.",
        "Any growth: a bug. The worker's log has the traceback.",
    ),
    None,
    None,
    CounterRow(
        "clients_cut_total",
        "counter",
        "clients",
        "Clients cut because they did not read their outcomes.",
        "Any growth: a client hangs; the log names it (`daemon.client_ack_timeout_s`).",
    ),
    CounterRow(
        "stale_updates_refused_total",
        "counter",
        "updates",
        "Metadata pushes refused for an old epoch.",
        "Growth long after a start or a takeover.",
    ),
    CounterRow("wakeups_total", "counter", "turns", "Turns of the worker's loop that had work."),
    CounterRow(
        "buffer_exhausted_total",
        "counter",
        "submissions",
        "Times a submission found no free page.",
        "Steady growth: `buffer.memory` is too small, or a broker is too slow.",
    ),
    CounterRow(
        "buffer_pages_taken",
        "gauge",
        "pages",
        "Pages of the pool that this worker holds (`pool.page_bytes` each).",
        "The sum over the slots stays near `buffer.memory`.",
    ),
    CounterRow(
        "buffer_waiters",
        "gauge",
        "streams",
        "Streams that wait for pages.",
        "Above 0 for minutes.",
    ),
    CounterRow(
        "clients_connected",
        "gauge",
        "clients",
        "Clients attached now.",
        "Near `daemon.clients_max`, or 0 where clients should be.",
    ),
    CounterRow("in_flight_requests", "gauge", "requests", "Produce requests without an answer yet."),
    CounterRow(
        "incomplete_batches",
        "gauge",
        "batches",
        "Record batches in queues and in flight.",
        "It grows for minutes while `batches_sent_total` does not move.",
    ),
    CounterRow(
        "broker_connections",
        "gauge",
        "connections",
        "Open connections to brokers.",
        "0 while `records_held` is above 0.",
    ),
    CounterRow(
        "metadata_version",
        "gauge",
        "version",
        "Version of the metadata snapshot in use.",
        "Slots differ for more than a few seconds: a worker does not take its pushes.",
    ),
    CounterRow(
        "topics_waiting",
        "gauge",
        "topics",
        "Topics whose records wait for metadata or for a partition.",
        "Above 0 for longer than `max.block.ms`.",
    ),
    None,  # lane_rows_full_total
    CounterRow(
        "adoptions_total",
        "counter",
        "adoptions",
        "Times a worker took over the slot of a dead one.",
        "Any growth without a planned restart: the log has the exit status.",
    ),
    CounterRow("records_adopted_total", "counter", "records", "Records taken over in adoptions."),
    CounterRow(
        "records_resent_unknown_total",
        "counter",
        "records",
        "Records sent again although their broker no longer knew whether it has them.",
        "Any growth: a few of them may be duplicated (`recover.unknown`).",
    ),
    CounterRow(
        "records_held",
        "gauge",
        "records",
        "Accepted records without an outcome: accepted = delivered + failed + dead lettered + aborted + held + staged.",
        "It grows for minutes: records come in faster than brokers take them, or not at all.",
    ),
    CounterRow(
        "dead_letters_waiting",
        "gauge",
        "submissions",
        "Failed submissions of gone clients that the spool cannot take now.",
        "Above 0: the spool is full or cannot be written; they use up `buffer.memory`.",
    ),
    CounterRow(
        "dead_letter_errors_total",
        "counter",
        "errors",
        "Times the dead letter spool could not be written.",
        "Any growth: disk, permissions or bound of the spool; the log says which.",
    ),
    CounterRow(
        "dead_letters_dropped_total",
        "counter",
        "records",
        "Records in the oldest spool files, removed for room (dead_letters.when_full = drop_oldest).",
        "Any growth: failed records are lost for good.",
    ),
    CounterRow(
        "accept_log_commits_total",
        "counter",
        "commits",
        "Groups of accepted records that were synced to disk (pool.sync = accept).",
    ),
    CounterRow(
        "accept_log_errno",
        "gauge",
        "errno",
        "Error number with which the disk of pool.path refuses accepted records; 0: it takes them.",
        "Not 0: nothing is accepted.",
    ),
    CounterRow(
        "produce_throttle_avg_ms",
        "gauge",
        "milliseconds",
        "Throttle time that brokers asked for, averaged over the answers of the last 30 to 60 s.",
        "Above 0: a quota of the cluster is used up.",
    ),
    CounterRow("produce_throttle_max_ms", "gauge", "milliseconds", "The longest such throttle time."),
    CounterRow(
        "poison_submissions_total",
        "counter",
        "submissions",
        "Submissions and batches set aside because a worker died three times while it processed them.",
        "Any growth: a bug that some content triggers. A copy is in the spool.",
    ),
    CounterRow(
        "accept_errors_total",
        "counter",
        "messages",
        "Messages that the worker could not take because of an internal error.",
        "Any growth: a bug. The worker's log has the traceback.",
    ),
    CounterRow(
        "client_connections_closed_total",
        "counter",
        "connections",
        "Connections of clients that the worker closed: no ZeroMQ, too slow, too large, or beyond a bound.",
        "Steady growth: something else connects to the worker's socket.",
    ),
    CounterRow(
        "late_answers_total",
        "counter",
        "answers",
        "Answers for record batches that had ended already, by delivery.timeout.ms or a forced close.",
        "Any growth: these records were reported as failed, and may be in their topic.",
    ),
    CounterRow(
        "batch_errors_total",
        "counter",
        "batches",
        "Record batches that a broker refused whole or whose request got no answer; most are sent again.",
        "Far above `batches_retried_total`: they fail. The clients' errors say why.",
    ),
    CounterRow(
        "records_discarded_total",
        "counter",
        "records",
        "Records that were discarded on arrival because their client was over its rate (`over.limit = discard`).",
        "Any growth: `status` and the log name topic, client and rate among the failed records.",
    ),
    CounterRow(
        "requests_saved_total",
        "counter",
        "requests",
        "Additional Produce requests, at least, that one Kafka client in each process would have sent: for each "
        "request the clients with records in it, less one.",
    ),
    CounterRow(
        "records_aborted_total",
        "counter",
        "records",
        "Records of transactions that ended without being delivered: unsent when their transaction was aborted, or the "
        "failures that made it abort.",
        "Steady growth: transactions fail. The clients' errors and the worker's log name the first cause of each.",
    ),
    CounterRow("transactions_open", "gauge", "transactions", "Transactions that have begun and not ended."),
    CounterRow(
        "transaction_oldest_ms",
        "gauge",
        "milliseconds",
        "Age of the oldest open transaction. Readers of committed records wait for it in its partitions.",
        "Near `transaction_timeout_ms`: the coordinator is about to abort it.",
    ),
    CounterRow(
        "transactions_committed_total", "counter", "transactions", "Transactions that ended as committed."
    ),
    CounterRow(
        "transactions_aborted_total",
        "counter",
        "transactions",
        "Transactions that ended as aborted, by their client or because it is gone.",
        "Steady growth: transactions fail, or clients die in them.",
    ),
    CounterRow(
        "transactions_fenced_total",
        "counter",
        "ids",
        "Transactional ids that were lost to another producer with the same id.",
        "Any growth: two programs use one id.",
    ),
    CounterRow(
        "records_staged",
        "gauge",
        "records",
        "Accepted records in stages that no transaction has included yet.",
        "It stays while no process works: nobody includes or drops these stages.",
    ),
    CounterRow("stages_open", "gauge", "stages", "Stages that a process is filling."),
    CounterRow("stages_sealed", "gauge", "stages", "Stages that wait for a transaction to include them."),
    CounterRow(
        "stage_oldest_ms",
        "gauge",
        "milliseconds",
        "Age of the sealed stage that waits longest.",
        "Near `daemon.stage_timeout_ms`: it is about to be dropped.",
    ),
    CounterRow(
        "staged_bytes",
        "gauge",
        "bytes",
        "Bytes of the pool held by records of stages, with those of transactions under way.",
        "Near `staged_bytes_max`: the next records of stages fail.",
    ),
    CounterRow(
        "staged_bytes_max", "gauge", "bytes", "The share of the pool for stages (`pool.staged_share`)."
    ),
    CounterRow("stages_included_total", "counter", "stages", "Stages that a transaction has included."),
    CounterRow(
        "stages_dropped_total", "counter", "stages", "Stages that were dropped as a client asked for it."
    ),
    CounterRow(
        "stages_expired_total",
        "counter",
        "stages",
        "Stages that nobody included within `daemon.stage_timeout_ms`.",
        "Any growth: a program stages and does not commit.",
    ),
    CounterRow(
        "stages_abandoned_total", "counter", "stages", "Stages whose process ended before it had sealed them."
    ),
    CounterRow(
        "stages_evicted_total",
        "counter",
        "stages",
        "Sealed stages dropped for another owner's of the same transactional id, as the share of the pool was full.",
    ),
    CounterRow(
        "stages_failed_total",
        "counter",
        "stages",
        "Stages dropped because a record of them was not accepted.",
        "Any growth: the clients' errors say why, for instance `pool.staged_share`.",
    ),
)
"""All rows in the order of the slot's block."""

COUNTER_ROWS: Final = tuple(row for row in _ORDER if row is not None)
ROW_INDEX: Final = {row.name: index for index, row in enumerate(_ORDER) if row is not None}
"""Row name → its index in a slot's block."""
assert len(ROW_INDEX) == len(COUNTER_ROWS) and len(_ORDER) <= COUNTER_ROWS_MAX
