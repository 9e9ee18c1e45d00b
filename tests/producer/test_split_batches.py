"""Batches that are too large for their topic: split, or failed (rules A7 and A8)."""

from __future__ import annotations

import pytest

from client_stub.contract.wire import LocalCode, Persistence
from sidecar.common.errors import Code
from sidecar.producer.effects import Split

from .harness import Core, answer, payloads_of, plain_core


@pytest.mark.rule("A7")
def test_a_batch_too_large_for_its_topic_is_split_and_both_halves_are_delivered() -> None:
    """AC-07: sequences, deadline and attempts are kept; order too, though more is queued."""
    core = Core()
    request = core.send("a", "b")
    core.append("c")
    parent = request.batches[0]
    core.respond(request, answer(0, Code.MESSAGE_TOO_LARGE))
    (request,) = core.poll()
    (split,) = core.of(Split)
    assert split == Split(parent, parent.children)
    first, second = split.pieces
    assert [piece.base_sequence for piece in split.pieces] == [0, 1]
    assert [piece.deadline_ms for piece in split.pieces] == [parent.deadline_ms] * 2
    assert request.batches == [first]
    core.acknowledge(request, base_offset=0)
    requests = core.poll()
    assert requests[0].batches == [second]
    core.acknowledge(requests[0], base_offset=1)
    for request in [*requests[1:], *core.poll()]:
        core.acknowledge(request, base_offset=2)
    core.poll()
    assert [batch.base_offset for batch in core.decided] == [0, 1, 2]
    assert payloads_of(core.decided) == ["a", "b", "c"]
    assert core.sender.counts.batches_split == 1
    assert core.sender.is_idle


@pytest.mark.rule("A7")
def test_a_single_record_too_large_fails() -> None:
    core = Core()
    core.respond(core.send("a"), answer(0, Code.MESSAGE_TOO_LARGE))
    core.poll()
    (batch,) = core.decided
    assert batch.code == Code.MESSAGE_TOO_LARGE
    assert batch.text == (
        f"The record for topic {batch.topic} ({batch.size_bytes:,} bytes with its batch, before compression) is "
        "larger than the topic's max.message.bytes."
    ), "Kafka's own words name neither"


@pytest.mark.rule("A7")
def test_a_split_in_the_plain_lane_keeps_the_order() -> None:
    core = plain_core()
    request = core.send(*"abcd")
    core.append("e")
    core.respond(request, answer(0, Code.MESSAGE_TOO_LARGE))
    sent = [payloads_of(request.batches) for request in [*core.poll(), *core.poll()]]
    assert sent == [["a", "b"], ["c", "d"], ["e"]]


@pytest.mark.rule("A7")
@pytest.mark.rule("A8")
def test_an_expired_batch_is_not_split() -> None:
    core = Core(delivery_timeout_ms=1500)
    request = core.send("a", "b")
    core.poll(1600)
    core.respond(request, answer(0, Code.MESSAGE_TOO_LARGE))
    assert core.poll() == []
    assert core.of(Split) == []
    assert [batch.code for batch in core.decided] == [LocalCode.EXPIRED]


@pytest.mark.rule("A8")
def test_halves_expire_with_their_parents_deadline() -> None:
    core = Core(delivery_timeout_ms=1500)
    core.clock.advance(0)
    request = core.send("a", "b")
    core.clock.advance(1000)
    core.append("c")
    core.respond(request, answer(0, Code.MESSAGE_TOO_LARGE))
    core.links.down.add(1)
    core.poll()
    assert core.sender.next_wakeup_ms == request.batches[0].deadline_ms
    core.poll(500)
    assert payloads_of(core.decided) == ["a", "b"]
    core.poll(1000)
    assert payloads_of(core.decided) == ["a", "b", "c"]


@pytest.mark.rule("A7")
def test_halves_of_a_batch_that_may_be_there_whole_are_not_renumbered() -> None:
    """The broker knows batches by base and count: it would take a half under a new number as something
    new."""
    core = Core()
    core.send("a", "b")
    core.sender.on_disconnect(1, core.now_ms)
    (request,) = core.poll(200)
    core.respond(request, answer(0, Code.MESSAGE_TOO_LARGE))
    (request,) = core.poll()
    core.respond(request, answer(0, Code.OUT_OF_ORDER_SEQUENCE_NUMBER))
    (request,) = core.poll(200)
    core.respond(request, answer(0, Code.OUT_OF_ORDER_SEQUENCE_NUMBER))
    core.poll()
    assert payloads_of(core.decided) == ["a", "b"]
    assert {batch.persistence for batch in core.decided} == {Persistence.POSSIBLY_PERSISTED}
    assert core.sender.is_idle
