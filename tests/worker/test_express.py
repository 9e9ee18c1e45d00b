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
from tests.worker.express_stage import LARGE, LOUD, QUIET, SMALL, Stage, log_of, quiet_and_loud, small_segment

from .hand import EPOCH
from .slot_stage import STAMP_MS, TOPIC


@pytest.fixture
def segment(tmp_path: Path) -> Iterator[Segment]:
    with closing(small_segment(tmp_path)) as made:
        yield made


@pytest.fixture
def stage(segment: Segment) -> Stage:
    return quiet_and_loud(segment)


def test_a_quiet_client_s_record_passes_the_backlog(stage: Stage) -> None:
    count = stage.pile_up()
    assert stage.submit(QUIET, b"quiet")
    stage.settle_all()
    found = log_of(stage.broker)
    assert found.index(b"quiet") == 0, "nothing of the backlog was in a request when it came"
    assert [value for value in found if value != b"quiet"] == [b"%d" % number for number in range(count)]


def test_without_a_backlog_there_is_one_chain(stage: Stage, segment: Segment) -> None:
    stage.submit(LOUD, b" " * LARGE)
    stage.submit(QUIET, b"quiet")
    assert [name.is_express for name in ChainTable(segment, 0).names()] == [False]


def test_a_client_with_much_unsettled_goes_in_bulk(stage: Stage) -> None:
    count = stage.pile_up()
    assert stage.submit(LOUD, b"last")
    stage.settle_all()
    assert log_of(stage.broker) == [*(b"%d" % number for number in range(count)), b"last"]


def test_a_client_that_became_loud_goes_on_in_bulk_behind_its_own(stage: Stage) -> None:
    stage.pile_up()
    for number in range(QUIET_BYTES // SMALL + 3):
        assert stage.submit(QUIET, b"q%d" % number + b" " * SMALL)
    queue = stage.topics.get(TOPIC)
    assert queue is not None and queue.express is not None
    passed = queue.express.chain.live_entries
    assert 0 < passed <= QUIET_BYTES // SMALL
    stage.settle_all()
    own = [value for value in log_of(stage.broker) if value.startswith(b"q")]
    assert own == [b"q%d" % number for number in range(len(own))]
    assert len(own) == QUIET_BYTES // SMALL + 3


def test_a_quiet_client_with_records_in_bulk_is_held_until_they_ended(stage: Stage) -> None:
    assert stage.submit(QUIET, b"q0")
    stage.pile_up()
    stage.pile_up()
    assert not stage.submit(QUIET, b"q1")
    assert stage.sessions_of[QUIET].streams[1].hold_cause is HoldCause.EXPRESS
    stage.express.look()
    assert stage.is_held(QUIET), "its record has not ended"
    while stage.is_held(QUIET):
        stage.turn()
        stage.express.look()
    assert not stage.express.changing
    assert stage.submit(QUIET, b"q1")
    assert stage.express_values == [b"q1"]
    stage.settle_all()
    assert [value for value in log_of(stage.broker) if value.startswith(b"q")] == [b"q0", b"q1"]


def test_it_goes_on_in_bulk_when_that_takes_too_long_and_is_not_tried_again_at_once(stage: Stage) -> None:
    stage.broker.is_silent = True
    assert stage.submit(QUIET, b"q0")
    stage.turn()
    stage.pile_up()
    assert not stage.submit(QUIET, b"q1")
    stage.now_ms += CHANGE_MS_MAX
    stage.intake.holds.timed_due(stage.now_ms)
    assert not stage.is_held(QUIET)
    assert stage.submit(QUIET, b"q1") and stage.submit(QUIET, b"q2")
    stage.express.look()
    assert not stage.express.changing
    assert not stage.express_values
    stage.broker.is_silent = False
    stage.cut()
    stage.settle_all()
    assert [value for value in log_of(stage.broker) if value.startswith(b"q")] == [b"q0", b"q1", b"q2"]


def test_who_passes_goes_on_to_do_so_until_the_backlog_has_nearly_ended(stage: Stage) -> None:
    """Else it would be held for each way back."""
    stage.pile_up()
    assert stage.submit(QUIET, b"q0")
    queue = stage.topics.get(TOPIC)
    assert queue is not None and queue.express is not None
    while queue.chain.page_count >= stage.express.backlog_pages:
        stage.turn()
    tail = queue.express.chain.tail
    assert stage.submit(QUIET, b"q1")
    assert queue.express.chain.tail > tail
    while queue.chain.page_count >= stage.express.backlog_pages // 4:
        stage.turn()
    tail = queue.chain.tail
    assert stage.submit(QUIET, b"q2")
    assert queue.chain.tail > tail
    stage.settle_all()
    assert [value for value in log_of(stage.broker) if value.startswith(b"q")] == [b"q0", b"q1", b"q2"]


def test_a_client_may_be_held_again_after_a_hold_that_was_short(stage: Stage) -> None:
    assert stage.submit(QUIET, b"q0")
    stage.pile_up()
    assert not stage.submit(QUIET, b"q1")
    while stage.is_held(QUIET):
        stage.turn()
        stage.express.look()
    assert stage.sessions_of[QUIET].streams[1].change_again_ms == 0.0
    stage.settle_all()


def test_nobody_is_held_for_express_chains_that_are_full(stage: Stage) -> None:
    assert stage.submit(QUIET, b"q0")
    stage.pile_up()
    stage.express._pages_max = stage.shares.express_pages
    assert stage.submit(QUIET, b"q1")
    stage.settle_all()


def test_a_record_that_was_refused_here_is_no_reason_to_hold_its_client(stage: Stage) -> None:
    """It stands in the bulk chain and has its end."""
    stage.pile_up()
    session = stage.sessions_of[QUIET]
    fields = [EPOCH, 1, 1, TOPIC, STAMP_MS, Format.MSGPACK, 0, 1]
    stage.intake.submit(session, fields, b"", stage.now_ms, skipped_bytes=1 << 30)
    assert session.streams[1].position == 1
    assert stage.submit(QUIET, b"quiet")
    assert stage.express_values == [b"quiet"]
    stage.settle_all()


def test_a_client_that_leaves_while_it_is_held_is_forgotten(stage: Stage) -> None:
    assert stage.submit(QUIET, b"q0")
    stage.pile_up()
    assert not stage.submit(QUIET, b"q1")
    stage.intake.holds.forget(stage.sessions_of[QUIET])
    stage.express.look()
    assert not stage.express.changing
    stage.settle_all()


def test_express_chains_have_a_bound_and_beyond_it_all_go_in_bulk(stage: Stage) -> None:
    stage.pile_up()
    clients = [b"%020d" % number for number in range(5)]
    for client_id in clients:
        stage.join(client_id)
    room = stage.express._pages_max
    assert room == int(EXPRESS_SHARE * 64 * 1024**2) // (16 << 10) < EXPRESS_BYTES_MAX // (16 << 10)
    while stage.shares.express_pages < room:
        before = stage.shares.express_pages
        for client_id in clients:
            stage.submit(client_id, b" " * SMALL)
        if stage.shares.express_pages == before:
            break  # all of them are loud by now
    stage.express._pages_max = stage.shares.express_pages
    stage.join(b"z" * 20)
    assert stage.submit(b"z" * 20, b"bulk")
    queue = stage.accumulator.queue(TOPIC, 0, 0)
    assert not queue.batches[-1].is_express
    assert stage.shares.express_pages == stage.express._pages_max


def test_a_topic_s_share_does_not_hold_those_who_pass(stage: Stage) -> None:
    """The runaway client fills its topic's share; records that pass have a bound of their own."""
    number = 0
    while stage.submit(LOUD, b"%d" % number + b" " * LARGE):
        number += 1
    assert stage.is_held(LOUD)
    assert stage.submit(QUIET, b"quiet")


def test_the_express_row_goes_with_the_topic_s_other_one(stage: Stage, segment: Segment) -> None:
    stage.pile_up()
    assert stage.submit(QUIET, b"quiet")
    stage.settle_all()
    stage.release_idle()
    for client_id in (LOUD, QUIET):
        stage.acknowledge(stage.sessions_of[client_id])
        stage.sessions.detach(stage.sessions_of[client_id], stage.now_ms, for_good=True)
    stage.give_up()
    assert set(stage.accumulator.schedule.full_ms) == {TOPIC}
    stage.topics._vacate_unused()
    assert not list(ChainTable(segment, 0).names())
    assert not stage.accumulator.schedule.full_ms, "topics that come and go leave no times behind"
    assert stage.topics.get(TOPIC) is not None, "and may have its names again"


def test_names_stay_while_an_end_in_the_express_chain_is_not_noted(stage: Stage) -> None:
    """Its pages may be gone by then: the turn that notes the end looks for the chain's queue."""
    stage.pile_up()
    assert stage.submit(QUIET, b"quiet")
    queue = stage.topics.get(TOPIC)
    assert queue is not None and queue.express is not None
    stage.settle_all()
    stage.release_idle()
    for client_id in (LOUD, QUIET):
        stage.acknowledge(stage.sessions_of[client_id])
        stage.sessions.detach(stage.sessions_of[client_id], stage.now_ms, for_good=True)
    stage.give_up()
    stage.settlement.finished_chains.add(queue.express.chain)
    stage.topics._vacate_unused()
    assert stage.topics.by_chain[queue.express.chain.chain_id] is queue.express


# --- the share of what passes --------------------------------------------------------------------------------------


def held_elsewhere(stage: Stage) -> int:
    """Another worker's sight of the topic's share."""
    stage.segment.prepare_slot(1)
    return ShareWords(stage.segment, 1).topic_elsewhere(TOPIC)


@pytest.mark.parametrize("refused_by", ["", "refuse_value", "invalid_value", "records_max"])
def test_the_share_of_what_passes_is_given_back_with_its_end(stage: Stage, refused_by: str) -> None:
    count = stage.pile_up()
    if refused_by:
        setattr(stage.broker, refused_by, 0 if refused_by == "records_max" else b"quiet")
    assert stage.submit(QUIET, b"quiet")
    assert held_elsewhere(stage) > count * LARGE
    stage.settle_all()
    for client_id in (LOUD, QUIET):
        stage.acknowledge(stage.sessions_of[client_id])
    stage.turn()
    assert held_elsewhere(stage) == 0
    assert (b"quiet" in stage.broker.log.get(0, [])) is (not refused_by)


def test_the_share_of_what_passes_is_given_back_when_its_topic_is_deleted(stage: Stage) -> None:
    stage.pile_up()
    assert stage.submit(QUIET, b"quiet")
    stage.sender.fail_partitions(TOPIC, None, LocalCode.TOPIC_DELETED, "deleted", stage.now_ms)
    stage.settle_all()
    for client_id in (LOUD, QUIET):
        stage.acknowledge(stage.sessions_of[client_id])
    stage.turn()
    assert held_elsewhere(stage) == 0


def test_the_pages_of_all_express_chains_are_counted_as_they_come_and_go(
    stage: Stage, segment: Segment
) -> None:
    """Each submission that passes asks for their number: nothing is summed for it."""
    stage.pile_up()
    for number in range(3):
        assert stage.submit(QUIET, b"%d" % number + b" " * SMALL)
    queue = stage.topics.get(TOPIC)
    assert queue is not None and queue.express is not None
    assert stage.shares.express_pages == queue.express.chain.page_count > 1
    second = Stage(segment, stage.broker, 2)
    second.shares.begin(second.now_ms)
    queue = second.topics.get(TOPIC)
    assert queue is not None and queue.express is not None
    assert second.shares.express_pages == queue.express.chain.page_count > 1
    second.ask()
    second.know_topic()
    second.settle_all()
    assert second.shares.express_pages == queue.express.chain.page_count
    second.now_ms += 2_000.0
    second.rooms.driver._release_idle(second.now_ms)
    assert second.shares.express_pages == queue.express.chain.page_count == 0


@pytest.mark.parametrize("place", ["_take", "link_pages"])
def test_an_error_of_ours_gives_the_share_back_that_was_claimed(
    stage: Stage, monkeypatch: pytest.MonkeyPatch, place: str
) -> None:
    """The record fails in the other chain of its topic."""
    stage.pile_up()
    holds = stage.intake.holds
    before = getattr(holds, place)

    def breaks(*args: object) -> None:
        monkeypatch.undo()
        if place == "link_pages":
            before(*args)
        raise OSError("nobody foresaw this")

    monkeypatch.setattr(holds, place, breaks)
    assert stage.submit(QUIET, b"fails")
    queue = stage.topics.get(TOPIC)
    assert queue is not None and queue.express is not None
    assert not queue.express.chain.live_entries
    stage.settle_all()
    for client_id in (LOUD, QUIET):
        stage.acknowledge(stage.sessions_of[client_id])
    stage.turn()
    assert held_elsewhere(stage) == 0


# --- a successor ------------------------------------------------------------------------------------------------
