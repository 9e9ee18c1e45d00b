"""Goal: a failure reaches its client, or the spool, whoever is gone; and what the spool cannot take stays held."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import pytest

from client_stub.contract.wire import LocalCode
from sidecar.common.condition import SILENT_MS
from sidecar.common.control import Explain
from sidecar.deadletter.letters import Letter, lines, parse
from sidecar.deadletter.spool import SpoolWriter
from sidecar.deadletter.spool_files import spool_files
from sidecar.kernel import BatchRecords, fail_remaining, index
from sidecar.producer.batch_states import BatchState
from sidecar.producer.effects import Decided
from sidecar.producer.partition_queue import PartitionQueue
from sidecar.producer.producer_batch import ProducerBatch
from sidecar.producer.topic_settings import TopicRules
from sidecar.shm.recovery import describe_undelivered
from sidecar.shm.submission_name import submission_name
from sidecar.worker.outcomes.batched_outcomes import batch_undelivered
from sidecar.worker.outcomes.dead_letters import IDLE_CLOSE_MS, RETRY_MS, DeadLetters
from sidecar.worker.reporter import REPORT_MS
from sidecar.worker.streams.client_outcomes import ClientOutcomes
from sidecar.worker.streams.session import ClientSession
from sidecar.worker.streams.topic_queue import TopicQueue
from tests.configs import producer_config
from tests.reading_back import read_letters
from tests.worker.harness import Harness, told


class Clock:
    now_ms = 0.0


class Office:
    """DeadLetters on a real folder; ``run`` does what its thread would."""

    def __init__(self, harness: Harness, folder: Path, max_bytes: int = 1 << 20) -> None:
        self.harness, self.folder = harness, folder
        self.clock = Clock()
        self.letters = DeadLetters(
            spool=SpoolWriter(folder, "w", max_bytes=max_bytes, drop_oldest=False),
            submit=harness.worker.host.run_beside,
            row_of=harness.sessions.row,
            name_of=partial(submission_name, harness.segment.instance_id, 0),
            counters=harness.counters,
            now_ms=lambda: self.clock.now_ms,
            turns=harness.rooms.turns,
        )
        harness.acker._dead_letters = harness.settlement._dead_letters = self.letters

    def run(self) -> None:
        self.harness.worker.host.run_work()

    def found(self) -> list[Letter]:
        return [
            letter
            for path in spool_files(self.folder)
            for _, letter in read_letters(path)
            if isinstance(letter, Letter)
        ]


@pytest.fixture
def office(harness: Harness, tmp_path: Path) -> Office:
    return Office(harness, tmp_path / "spool")


def accept(harness: Harness, session: ClientSession, seq: int, count: int) -> None:
    harness.counters.add({"records_accepted_total": count, "records_held": count})
    entry = harness.accept(session, seq, count)
    failed = fail_remaining(harness.chain, entry, LocalCode.METADATA_TIMEOUT)
    failures = [(i, int(LocalCode.METADATA_TIMEOUT)) for i in failed]
    harness.settlement.fail_records(TopicQueue("t", 0, harness.chain), entry, failures, 1.0)


def ledger(harness: Harness) -> tuple[int, int, int, int, int]:
    values = harness.counters.read()
    return (
        values["records_accepted_total"],
        values["records_delivered_total"],
        values["records_failed_total"],
        values["records_dead_lettered_total"],
        values["records_held"],
    )


def test_a_client_that_comes_back_within_its_grace_hears_of_it(harness: Harness, office: Office) -> None:
    client = harness.client()
    accept(harness, client, 1, 3)
    harness.sessions.detach(client, 0.0)
    accept(harness, client, 2, 1)
    assert harness.sessions.reclaim(1.0) == []
    assert ledger(harness) == (4, 0, 0, 0, 4)
    assert [outcome.seq for outcome in told(client.row)] == [1, 2]
    client.row.ring_ack(2)
    harness.acker.acked(client, 2.0)
    office.run()
    assert ledger(harness) == (4, 0, 4, 0, 0)
    assert office.found() == []


def test_a_client_that_does_not_come_back_leaves_dead_letters(harness: Harness, office: Office) -> None:
    client = harness.client("billing")
    accept(harness, client, 1, 3)
    harness.sessions.detach(client, 0.0)
    (over,) = harness.sessions.reclaim(60_000.0)
    harness.acker.abandon(over)
    assert ledger(harness) == (3, 0, 0, 0, 3), "not before it is on disk"
    assert office.letters.is_writing
    office.run()
    assert ledger(harness) == (3, 0, 0, 3, 0)
    assert not office.letters.is_writing
    assert describe_undelivered(harness.segment) == []
    first, *_ = office.found()
    assert [letter.value for letter in office.found()] == [b"v0", b"v1", b"v2"]
    assert first.sender == f"{client.row.client_id.hex()}/1/1/0"
    assert (first.topic, first.partition) == ("t", 0)
    assert "METADATA" in first.error or "TIMEOUT" in first.error
    # Whatever of it fails later goes the same way at once.
    accept(harness, client, 2, 1)
    office.run()
    assert ledger(harness) == (4, 0, 0, 4, 0)
    harness.sessions.reclaim(60_001.0)
    assert harness.sessions.of_row(client.row.index) is None, "its row is free now, not before"


def test_a_client_that_said_goodbye_without_waiting_knows_already(harness: Harness, office: Office) -> None:
    client = harness.client()
    accept(harness, client, 1, 2)
    client.has_cancelled = True
    harness.sessions.detach(client, 0.0, for_good=True)
    harness.acker.abandon(client)
    accept(harness, client, 2, 1)
    office.run()
    assert ledger(harness) == (3, 0, 3, 0, 0)
    assert office.found() == []


def test_a_batch_of_two_clients_of_which_one_is_gone(harness: Harness, office: Office) -> None:
    gone, here = harness.client("gone"), harness.client("here")
    harness.counters.add({"records_accepted_total": 5, "records_held": 5})
    batch = harness.batch(harness.accept(gone, 1, 3), harness.accept(here, 1, 2))
    batch.decide(code=29, text="not allowed")
    harness.settlement.settle(Decided((batch,)), 1.0)
    harness.sessions.detach(gone, 0.0, for_good=True)
    harness.acker.abandon(gone)
    office.run()
    assert ledger(harness) == (5, 0, 0, 0, 5), "one batch counts at once"
    here.row.ring_ack(here.row.next_number - 1)
    harness.acker.acked(here, 2.0)
    assert ledger(harness) == (5, 0, 2, 3, 0)
    assert [(letter.error, letter.text) for letter in office.found()] == [
        ("TOPIC_AUTHORIZATION_FAILED", "not allowed")
    ] * 3


def test_deliveries_of_a_gone_client_count_as_complete(harness: Harness, office: Office) -> None:
    client = harness.client()
    harness.counters.add({"records_accepted_total": 2, "records_held": 2})
    batch = harness.batch(harness.accept(client, 1, 2))
    harness.sessions.detach(client, 0.0, for_good=True)
    harness.acker.abandon(client)
    batch.decide(base_offset=5)
    harness.settlement.settle(Decided((batch,)), 1.0)
    office.run()
    assert ledger(harness) == (2, 2, 0, 0, 0)
    assert office.found() == []


def test_dead_letters_that_the_spool_cannot_take_are_held_and_retried(
    harness: Harness, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    office = Office(harness, tmp_path / "blocked" / "spool")
    (tmp_path / "blocked").write_text("a file where the folder should be")
    client = harness.client()
    harness.sessions.detach(client, 0.0, for_good=True)
    harness.acker.abandon(client)
    accept(harness, client, 1, 2)
    accept(harness, client, 2, 1)
    office.run()
    office.run()
    assert ledger(harness) == (3, 0, 0, 0, 3)
    assert not office.letters.is_writing, "nobody waits for it"
    assert harness.counters.get("dead_letters_waiting") == 2
    assert harness.counters.get("dead_letter_errors_total") == 1
    assert caplog.text.count("stay in the journal") == 1
    assert describe_undelivered(harness.segment)[0][2] == 3, "the segment is not removed with them"
    office.clock.now_ms = RETRY_MS
    office.letters.step(office.clock.now_ms)
    office.run()
    assert harness.counters.get("dead_letter_errors_total") == 2
    assert caplog.text.count("stay in the journal") == 1, "once a minute is enough"
    (tmp_path / "blocked").unlink()
    (tmp_path / "blocked").mkdir()
    office.clock.now_ms = 3 * RETRY_MS
    office.letters.step(office.clock.now_ms)
    office.run()
    assert ledger(harness) == (3, 0, 0, 3, 0)
    assert harness.counters.get("dead_letters_waiting") == 0
    assert [(letter.sender or "")[-3:] for letter in office.found()] == ["1/0", "1/1", "2/0"], "in order"


def test_dead_letters_that_wait_for_the_spool_are_explained_with_the_cause(tmp_path: Path) -> None:
    """The segment's ledger says `held` and nothing else does: an operator would look for a broker."""
    harness = Harness(tmp_path / "segment")
    (tmp_path / "spool").write_text("a file where the folder should be")
    rooms, host, clock = harness.rooms, harness.worker.host, harness.worker.clock
    client = gone_client(harness)
    accept(harness, client, 1, 2)
    accept(harness, client, 2, 1)
    while host.work:
        host.run_work()
    rooms.reporter.step(clock.now_ms())
    rooms.reporter.step(clock.now_ms() + SILENT_MS)  # no metadata comes, so it no longer waits for that
    (row,) = host.sent[-1].letters
    assert row.submissions == 2
    assert str(tmp_path / "spool") in row.reason and "cannot be written" in row.reason
    answer = rooms.explainer.explain(Explain(1, "t"), clock.now_ms())
    (wait,) = answer.rows
    assert (wait.topic, wait.cause, wait.records, wait.submissions) == ("t", "spool", 3, 2)
    assert wait.text == f"they failed, their clients are gone, and {row.reason}"
    assert rooms.explainer.explain(Explain(1, "other"), clock.now_ms()).rows == ()
    (tmp_path / "spool").unlink()
    rooms.dead_letters.step(clock.now_ms() + RETRY_MS)
    while host.work:
        host.run_work()
    rooms.reporter.step(clock.now_ms() + SILENT_MS + REPORT_MS)
    assert host.sent[-1].letters == ()
    assert rooms.explainer.explain(Explain(1, "t"), clock.now_ms()).rows == ()
    harness.close()


def test_an_idle_file_is_closed_so_that_it_can_be_replayed_away(harness: Harness, office: Office) -> None:
    client = harness.client()
    harness.sessions.detach(client, 0.0, for_good=True)
    harness.acker.abandon(client)
    accept(harness, client, 1, 1)
    office.run()
    assert [path.suffix for path in spool_files(office.folder)] == [".open"]
    office.letters.step(IDLE_CLOSE_MS - 1)
    assert [path.suffix for path in spool_files(office.folder)] == [".open"]
    office.letters.step(IDLE_CLOSE_MS + 1)
    assert [path.suffix for path in spool_files(office.folder)] == [".open"], "not on the loop"
    office.run()
    assert [path.suffix for path in spool_files(office.folder)] == [".jsonl"]


def test_much_is_written_in_pieces(harness: Harness, office: Office, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sidecar.worker.outcomes.dead_letters.STEP_BYTES", 100)
    client = harness.client()
    for seq in range(1, 11):
        accept(harness, client, seq, 20)
    failures: list[ClientOutcomes] = [each for _, each, _ in client.unacked]
    assert len(failures) == 10
    harness.sessions.detach(client, 0.0, for_good=True)
    harness.acker.abandon(client)
    waiting = harness.worker.host.work
    assert len(waiting) == 1, "one at a time"
    pieces = 0
    while waiting:
        work, done = waiting.pop(0)
        work()
        done(None)
        pieces += 1
    assert pieces == 10
    assert ledger(harness) == (200, 0, 0, 200, 0)


def gone_client(harness: Harness) -> ClientSession:
    client = harness.client()
    harness.sessions.detach(client, 0.0, for_good=True)
    harness.acker.abandon(client)
    return client


def retry(office: Office) -> None:
    office.clock.now_ms += RETRY_MS
    office.letters.step(office.clock.now_ms)
    office.run()


def test_a_spool_smaller_than_one_step_takes_what_fits(harness: Harness, tmp_path: Path) -> None:
    """Letters on disk are finished, the rest is held; as the spool is replayed away all of it gets there, once."""
    office = Office(harness, tmp_path / "spool", max_bytes=64 << 10)
    client = gone_client(harness)
    for seq in range(1, 11):
        accept(harness, client, seq, 50)
    office.run()
    seen: list[str] = []
    for _ in range(50):
        found = [letter.identity for letter in office.found()]
        seen += found
        on_disk = len(seen)
        finished, held = ledger(harness)[3], ledger(harness)[4]
        assert finished == on_disk // 50 * 50 and held == 500 - finished
        if on_disk == 500:
            break
        assert found, "never stuck while there is room"
        for path in spool_files(office.folder):
            path.unlink()
        retry(office)
    assert len(seen) == len(set(seen)) == 500
    assert harness.counters.get("dead_letters_waiting") == 0


def test_a_letter_that_never_fits_is_held_and_holds_up_nobody(
    harness: Harness, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    office = Office(harness, tmp_path / "spool", max_bytes=1_000)
    client = gone_client(harness)
    harness.counters.add({"records_accepted_total": 1, "records_held": 1})
    large = harness.accept_records(client, 1, [[None, bytes(2_000)]])
    code = int(LocalCode.METADATA_TIMEOUT)
    failed = [(index, code) for index in fail_remaining(harness.chain, large, code)]
    harness.settlement.fail_records(TopicQueue("t", 0, harness.chain), large, failed, 1.0)
    accept(harness, client, 2, 1)
    office.run()
    assert [letter.value for letter in office.found()] == [b"v0"]
    assert ledger(harness) == (2, 0, 0, 1, 1)
    assert harness.counters.get("dead_letters_waiting") == 1
    assert not office.letters.is_writing, "nobody waits for it"
    assert caplog.text.count("is larger than all that") == 1


def test_a_batchs_dead_letters_copy_only_its_own_records(harness: Harness) -> None:
    """A submission over many partitions fails batch by batch: no batch reads the others' records."""
    client = harness.client()
    entry = harness.accept_records(client, 1, [[b"k", b"v%d" % i, None, i % 6] for i in range(60)])
    block = index(harness.chain, entry, harness.partitioner, 1 << 20)
    groups = []
    for partition, start, stop in block.groups:
        records = BatchRecords()
        records.try_append(block, start, stop, 1 << 20)
        queue = PartitionQueue("t", partition, 0, TopicRules(producer_config()).of("t"))
        batch = ProducerBatch(
            queue=queue,
            records=records,
            chain=harness.chain,
            order=0,
            created_ms=0.0,
            deadline_ms=1e9,
            state=BatchState.BETWEEN,
        )
        for part in range(records.slice_count):
            groups.append(batch_undelivered(batch, part, client.row, lambda entry: bytes(16)))
    assert len(groups) == 6
    assert sum(len(group.payload) for group in groups) == entry.payload_bytes
    values = [parse(line).value for line in lines(groups, 1)]
    assert sorted(map(bytes, filter(None, values))) == sorted(b"v%d" % number for number in range(60))
