"""Express: a quiet client's records pass the backlog of others, and nobody's own order changes."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from client_stub.contract.wire import Format, LocalCode
from sidecar.common.condition import HoldCause
from sidecar.shm.chain_table import ChainTable
from sidecar.shm.segment import Segment
from sidecar.shm.share_words import ShareWords
from sidecar.worker.stubs.express import (
    CHANGE_MS_MAX,
    EXPRESS_BYTES_MAX,
    EXPRESS_SHARE,
    QUIET_BYTES,
)
from tests.worker.express_harness import (
    LARGE,
    LOUD,
    QUIET,
    SMALL,
    ExpressHarness,
    log_of,
    quiet_and_loud,
    small_segment,
)

from .manual_worker import EPOCH
from .slot_harness import STAMP_MS, TOPIC


@pytest.fixture
def segment(tmp_path: Path) -> Iterator[Segment]:
    with closing(small_segment(tmp_path)) as made:
        yield made


@pytest.fixture
def harness(segment: Segment) -> ExpressHarness:
    return quiet_and_loud(segment)


def test_a_quiet_client_s_record_passes_the_backlog(harness: ExpressHarness) -> None:
    count = harness.pile_up()
    assert harness.submit(QUIET, b"quiet")
    harness.settle_all()
    found = log_of(harness.broker)
    assert found.index(b"quiet") == 0, "nothing of the backlog was in a request when it came"
    assert [value for value in found if value != b"quiet"] == [b"%d" % number for number in range(count)]


def test_without_a_backlog_there_is_one_chain(harness: ExpressHarness, segment: Segment) -> None:
    harness.submit(LOUD, b" " * LARGE)
    harness.submit(QUIET, b"quiet")
    assert [name.is_express for name in ChainTable(segment, 0).names()] == [False]


def test_a_client_with_much_unsettled_goes_in_bulk(harness: ExpressHarness) -> None:
    count = harness.pile_up()
    assert harness.submit(LOUD, b"last")
    harness.settle_all()
    assert log_of(harness.broker) == [*(b"%d" % number for number in range(count)), b"last"]


def test_a_client_that_became_loud_continues_in_bulk_after_its_own(harness: ExpressHarness) -> None:
    harness.pile_up()
    for number in range(QUIET_BYTES // SMALL + 3):
        assert harness.submit(QUIET, b"q%d" % number + b" " * SMALL)
    queue = harness.topics.get(TOPIC)
    assert queue is not None and queue.express is not None
    passed = queue.express.chain.live_entries
    assert 0 < passed <= QUIET_BYTES // SMALL
    harness.settle_all()
    own = [value for value in log_of(harness.broker) if value.startswith(b"q")]
    assert own == [b"q%d" % number for number in range(len(own))]
    assert len(own) == QUIET_BYTES // SMALL + 3


def test_a_quiet_client_with_records_in_bulk_is_held_until_they_ended(harness: ExpressHarness) -> None:
    assert harness.submit(QUIET, b"q0")
    harness.pile_up()
    harness.pile_up()
    assert not harness.submit(QUIET, b"q1")
    assert harness.sessions_of[QUIET].streams[1].hold_cause is HoldCause.EXPRESS
    harness.express.check_changing()
    assert harness.is_held(QUIET), "its record has not ended"
    while harness.is_held(QUIET):
        harness.turn()
        harness.express.check_changing()
    assert not harness.express.changing
    assert harness.submit(QUIET, b"q1")
    assert harness.express_values == [b"q1"]
    harness.settle_all()
    assert [value for value in log_of(harness.broker) if value.startswith(b"q")] == [b"q0", b"q1"]


def test_it_continues_in_bulk_when_that_takes_too_long_and_is_not_tried_again_at_once(
    harness: ExpressHarness,
) -> None:
    harness.broker.is_silent = True
    assert harness.submit(QUIET, b"q0")
    harness.turn()
    harness.pile_up()
    assert not harness.submit(QUIET, b"q1")
    harness.now_ms += CHANGE_MS_MAX
    harness.holds.timed_due(harness.now_ms)
    assert not harness.is_held(QUIET)
    assert harness.submit(QUIET, b"q1") and harness.submit(QUIET, b"q2")
    harness.express.check_changing()
    assert not harness.express.changing
    assert not harness.express_values
    harness.broker.is_silent = False
    harness.cut()
    harness.settle_all()
    assert [value for value in log_of(harness.broker) if value.startswith(b"q")] == [b"q0", b"q1", b"q2"]


def test_a_passing_client_keeps_passing_until_the_backlog_has_nearly_ended(harness: ExpressHarness) -> None:
    """Else it would be held for each way back."""
    harness.pile_up()
    assert harness.submit(QUIET, b"q0")
    queue = harness.topics.get(TOPIC)
    assert queue is not None and queue.express is not None
    while queue.chain.page_count >= harness.express.backlog_pages:
        harness.turn()
    tail = queue.express.chain.tail
    assert harness.submit(QUIET, b"q1")
    assert queue.express.chain.tail > tail
    while queue.chain.page_count >= harness.express.backlog_pages // 4:
        harness.turn()
    tail = queue.chain.tail
    assert harness.submit(QUIET, b"q2")
    assert queue.chain.tail > tail
    harness.settle_all()
    assert [value for value in log_of(harness.broker) if value.startswith(b"q")] == [b"q0", b"q1", b"q2"]


def test_a_client_may_be_held_again_after_a_hold_that_was_short(harness: ExpressHarness) -> None:
    assert harness.submit(QUIET, b"q0")
    harness.pile_up()
    assert not harness.submit(QUIET, b"q1")
    while harness.is_held(QUIET):
        harness.turn()
        harness.express.check_changing()
    assert harness.sessions_of[QUIET].streams[1].change_again_ms == 0.0
    harness.settle_all()


def test_nobody_is_held_for_express_chains_that_are_full(harness: ExpressHarness) -> None:
    assert harness.submit(QUIET, b"q0")
    harness.pile_up()
    harness.express._pages_max = harness.shares.express_pages
    assert harness.submit(QUIET, b"q1")
    harness.settle_all()


def test_a_record_that_was_refused_here_is_no_reason_to_hold_its_client(harness: ExpressHarness) -> None:
    """It stands in the bulk chain and has its end."""
    harness.pile_up()
    session = harness.sessions_of[QUIET]
    fields = [EPOCH, 1, 1, TOPIC, STAMP_MS, Format.MSGPACK, 0, 1]
    harness.intake.submit(session, fields, b"", harness.now_ms, skipped_bytes=1 << 30)
    assert session.streams[1].position == 1
    assert harness.submit(QUIET, b"quiet")
    assert harness.express_values == [b"quiet"]
    harness.settle_all()


def test_a_client_that_leaves_while_it_is_held_is_forgotten(harness: ExpressHarness) -> None:
    assert harness.submit(QUIET, b"q0")
    harness.pile_up()
    assert not harness.submit(QUIET, b"q1")
    harness.holds.forget(harness.sessions_of[QUIET])
    harness.express.check_changing()
    assert not harness.express.changing
    harness.settle_all()


def test_express_chains_have_a_bound_and_beyond_it_all_go_in_bulk(harness: ExpressHarness) -> None:
    harness.pile_up()
    clients = [b"%020d" % number for number in range(5)]
    for client_id in clients:
        harness.join(client_id)
    room = harness.express._pages_max
    assert room == int(EXPRESS_SHARE * 64 * 1024**2) // (16 << 10) < EXPRESS_BYTES_MAX // (16 << 10)
    while harness.shares.express_pages < room:
        before = harness.shares.express_pages
        for client_id in clients:
            harness.submit(client_id, b" " * SMALL)
        if harness.shares.express_pages == before:
            break  # all of them are loud by now
    harness.express._pages_max = harness.shares.express_pages
    harness.join(b"z" * 20)
    assert harness.submit(b"z" * 20, b"bulk")
    queue = harness.accumulator.queue(TOPIC, 0, 0)
    assert not queue.batches[-1].is_express
    assert harness.shares.express_pages == harness.express._pages_max


def test_a_topic_s_share_does_not_hold_those_who_pass(harness: ExpressHarness) -> None:
    """The runaway client fills its topic's share; records that pass have a bound of their own."""
    number = 0
    while harness.submit(LOUD, b"%d" % number + b" " * LARGE):
        number += 1
    assert harness.is_held(LOUD)
    assert harness.submit(QUIET, b"quiet")


def test_the_express_row_goes_with_the_topic_s_other_one(harness: ExpressHarness, segment: Segment) -> None:
    harness.pile_up()
    assert harness.submit(QUIET, b"quiet")
    harness.settle_all()
    harness.release_idle()
    for client_id in (LOUD, QUIET):
        harness.acknowledge(harness.sessions_of[client_id])
        harness.sessions.detach(harness.sessions_of[client_id], harness.now_ms, for_good=True)
    harness.give_up()
    assert set(harness.accumulator.schedule.full_ms) == {TOPIC}
    harness.topics._vacate_unused()
    assert not list(ChainTable(segment, 0).names())
    assert not harness.accumulator.schedule.full_ms, "topics that come and go leave no times behind"
    assert harness.topics.get(TOPIC) is not None, "and may have its names again"


def test_names_stay_while_an_end_in_the_express_chain_is_not_noted(harness: ExpressHarness) -> None:
    """Its pages may be gone by then: the turn that notes the end looks for the chain's queue."""
    harness.pile_up()
    assert harness.submit(QUIET, b"quiet")
    queue = harness.topics.get(TOPIC)
    assert queue is not None and queue.express is not None
    harness.settle_all()
    harness.release_idle()
    for client_id in (LOUD, QUIET):
        harness.acknowledge(harness.sessions_of[client_id])
        harness.sessions.detach(harness.sessions_of[client_id], harness.now_ms, for_good=True)
    harness.give_up()
    harness.rooms.releases.released_chains.add(queue.express.chain)
    harness.topics._vacate_unused()
    assert harness.topics.by_chain[queue.express.chain.chain_id] is queue.express


# --- the share of what passes --------------------------------------------------------------------------------------


def held_elsewhere(harness: ExpressHarness) -> int:
    """Another worker's sight of the topic's share."""
    harness.segment.prepare_slot(1)
    return ShareWords(harness.segment, 1).topic_elsewhere(TOPIC)


@pytest.mark.parametrize("refused_by", ["", "refuse_value", "invalid_value", "records_max"])
def test_the_share_of_what_passes_is_given_back_with_its_end(
    harness: ExpressHarness, refused_by: str
) -> None:
    count = harness.pile_up()
    if refused_by:
        setattr(harness.broker, refused_by, 0 if refused_by == "records_max" else b"quiet")
    assert harness.submit(QUIET, b"quiet")
    assert held_elsewhere(harness) > count * LARGE
    harness.settle_all()
    for client_id in (LOUD, QUIET):
        harness.acknowledge(harness.sessions_of[client_id])
    harness.turn()
    assert held_elsewhere(harness) == 0
    assert (b"quiet" in harness.broker.log.get(0, [])) is (not refused_by)


def test_the_share_of_what_passes_is_given_back_when_its_topic_is_deleted(harness: ExpressHarness) -> None:
    harness.pile_up()
    assert harness.submit(QUIET, b"quiet")
    harness.sender.fail_partitions(TOPIC, None, LocalCode.TOPIC_DELETED, "deleted", harness.now_ms)
    harness.settle_all()
    for client_id in (LOUD, QUIET):
        harness.acknowledge(harness.sessions_of[client_id])
    harness.turn()
    assert held_elsewhere(harness) == 0


def test_the_pages_of_all_express_chains_are_counted_as_they_come_and_go(
    harness: ExpressHarness, segment: Segment
) -> None:
    """Each submission that passes asks for their number: nothing is summed for it."""
    harness.pile_up()
    for number in range(3):
        assert harness.submit(QUIET, b"%d" % number + b" " * SMALL)
    queue = harness.topics.get(TOPIC)
    assert queue is not None and queue.express is not None
    assert harness.shares.express_pages == queue.express.chain.page_count > 1
    second = ExpressHarness(segment, harness.broker, 2)
    second.shares.begin(second.now_ms)
    queue = second.topics.get(TOPIC)
    assert queue is not None and queue.express is not None
    assert second.shares.express_pages == queue.express.chain.page_count > 1
    second.ask()
    second.know_topic()
    second.settle_all()
    assert second.shares.express_pages == queue.express.chain.page_count
    second.now_ms += 2_000.0
    second.rooms.pages.release_idle(second.now_ms)
    assert second.shares.express_pages == queue.express.chain.page_count == 0


@pytest.mark.parametrize("place", ["_take", "link_pages"])
def test_an_error_of_ours_gives_the_share_back_that_was_claimed(
    harness: ExpressHarness, monkeypatch: pytest.MonkeyPatch, place: str
) -> None:
    """The record fails in the other chain of its topic."""
    harness.pile_up()
    holds = harness.holds
    before = getattr(holds, place)

    def breaks(*args: object) -> None:
        monkeypatch.undo()
        if place == "link_pages":
            before(*args)
        raise OSError("nobody foresaw this")

    monkeypatch.setattr(holds, place, breaks)
    assert harness.submit(QUIET, b"fails")
    queue = harness.topics.get(TOPIC)
    assert queue is not None and queue.express is not None
    assert not queue.express.chain.live_entries
    harness.settle_all()
    for client_id in (LOUD, QUIET):
        harness.acknowledge(harness.sessions_of[client_id])
    harness.turn()
    assert held_elsewhere(harness) == 0


# --- a successor ------------------------------------------------------------------------------------------------
