"""The end of a sender, and of a topic (rules S2, A9 and U5)."""

from __future__ import annotations

import pytest

from client_stub.contract.wire import LocalCode, Persistence
from sidecar.common.errors import Code

from .harness import TOPIC, Core, answer, payloads_of


@pytest.mark.rule("S2")
def test_graceful_close_delivers_everything_without_linger() -> None:
    core = Core(linger_ms=60_000)
    core.append("a")
    assert core.poll() == []
    core.sender.begin_close(core.now_ms)
    core.append("accepted meanwhile", partition=0)
    (request,) = core.poll()
    assert not core.sender.is_idle
    core.acknowledge(request)
    assert not core.sender.is_idle, "what is decided must still be told"
    core.poll()
    assert core.sender.is_idle


@pytest.mark.rule("A9")
@pytest.mark.rule("S2")
def test_forced_close_fails_everything_with_a_clear_error() -> None:
    core = Core(leaders=(1, 2))
    core.send("in flight", partition=0)
    core.links.down.add(2)
    core.append("queued", partition=1)
    core.poll()
    core.sender.force_close(core.now_ms)
    core.poll()
    told = {payloads_of([batch])[0]: batch for batch in core.decided}
    assert told["in flight"].persistence == Persistence.POSSIBLY_PERSISTED
    assert told["queued"].persistence == Persistence.NOT_PERSISTED
    assert {batch.code for batch in core.decided} == {LocalCode.ABORTED}
    assert "was closed before 1 record(s)" in told["queued"].text


@pytest.mark.rule("S2")
def test_a_late_answer_after_a_forced_close_changes_nothing() -> None:
    core = Core()
    request = core.send("a")
    core.sender.force_close(core.now_ms)
    core.acknowledge(request)
    core.poll()
    assert [batch.code for batch in core.decided] == [LocalCode.ABORTED]
    assert core.sender.is_idle


@pytest.mark.rule("U5")
def test_a_deleted_topics_waiting_batches_fail() -> None:
    core = Core(leaders=(-1, 1))
    core.append("a", partition=0)
    sent = core.send("b", partition=1)
    core.sender.fail_partitions(
        TOPIC, None, LocalCode.TOPIC_DELETED, "Topic orders was deleted.", core.now_ms
    )
    core.poll()
    assert payloads_of(core.decided) == ["a"]
    core.respond(sent, answer(1, 3))
    core.poll(400)
    assert payloads_of(core.decided) == ["a", "b"], "what was on the wire is not sent again"
    assert {each.code for each in core.decided} == {LocalCode.TOPIC_DELETED}
    # A leader may say so after it has appended, too.
    assert [each.persistence for each in core.decided] == [
        Persistence.NOT_PERSISTED,
        Persistence.POSSIBLY_PERSISTED,
    ]


@pytest.mark.parametrize("code", [Code.MESSAGE_TOO_LARGE, Code.INVALID_RECORD])
@pytest.mark.rule("U5")
def test_no_part_of_a_batch_that_was_refused_is_sent_after_its_topic_was_deleted(code: Code) -> None:
    core = Core()
    request = core.send("a", "b", "c")
    core.sender.fail_partitions(
        TOPIC, None, LocalCode.TOPIC_DELETED, "Topic orders was deleted.", core.now_ms
    )
    errors = ((1, "no key"),) if code == Code.INVALID_RECORD else ()
    core.respond(request, answer(0, code, record_errors=errors))
    assert core.poll() == [] and core.poll(400) == []
    codes = {name: each.code for each in core.decided for name in payloads_of([each])}
    bad = {"b": Code.INVALID_RECORD} if errors else {}
    assert codes == dict.fromkeys("abc", LocalCode.TOPIC_DELETED) | bad
    assert {each.persistence for each in core.decided} == {Persistence.NOT_PERSISTED}


def test_batches_on_the_wire_of_a_deleted_topic_may_be_delivered_or_in_doubt() -> None:
    core = Core(leaders=(1, 1, 1))
    delivered, lost = core.send("a", partition=0), core.send("b", partition=1)
    core.sender.fail_partitions(
        TOPIC, [0, 1], LocalCode.TOPIC_DELETED, "Topic orders was deleted.", core.now_ms
    )
    core.acknowledge(delivered)
    core.sender.on_disconnect(1, core.now_ms)
    core.poll()
    (good, bad) = core.decided
    assert (good.code, good.persistence) == (0, Persistence.PERSISTED)
    assert list(lost.batches) == [bad]
    assert (bad.code, bad.persistence) == (LocalCode.TOPIC_DELETED, Persistence.POSSIBLY_PERSISTED)
