"""Worker death, daemon restarts, HOLD/RESUME/RESEND/HELLO_AGAIN, forks: nothing lost, nothing completed twice."""

from __future__ import annotations

import multiprocessing
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from client_stub import Delivery, Producer, errors
from client_stub.contract.wire import Kind, Persistence
from tests.stub.conftest import eventually
from tests.stub.fake_daemon import Client, FakeDaemon, Submit


def arrived(submits: list[Submit]) -> list[bytes]:
    return [bytes(record[1]) for submit in submits for record in submit.records]


def test_after_a_workers_death_only_what_was_not_accepted_is_sent_again(
    producer: Producer, daemon: FakeDaemon
) -> None:
    daemon.deliver = None
    first = producer.send("t", b"1")
    eventually(lambda: daemon.clients and daemon.only_client.log)
    daemon.accept = lambda client, submit: False
    second = producer.send("t", b"2")
    eventually(lambda: len(daemon.received) == 2)
    daemon.accept = lambda client, submit: True
    daemon.kill_worker()
    eventually(lambda: len(daemon.only_client.log) == 2)
    assert [(s.seq, arrived([s])) for s in daemon.received] == [(1, [b"1"]), (2, [b"2"]), (2, [b"2"])]
    daemon.do(daemon.deliver_log)
    assert (first.result(10).offset, second.result(10).offset) == (0, 1)
    assert len(daemon.attaches) == 2 and daemon.attaches[1][7] == daemon.only_client.secret


def test_outcomes_repeated_after_a_lost_ack_are_ignored(producer: Producer, daemon: FakeDaemon) -> None:
    told: list[Any] = []
    producer.send("t", b"1", on_delivery=lambda e, m: told.append(m.offset))
    eventually(lambda: daemon.acks)
    client = daemon.only_client

    def answer_again() -> None:
        client.next_number = 1
        daemon.outcome(client, daemon.received[0], base_offset=7)

    daemon.do(answer_again)
    daemon.kill_worker()
    producer.send("t", b"2", on_delivery=lambda e, m: told.append(m.offset))
    daemon.do(lambda: setattr(client, "next_number", 3))
    eventually(lambda: len(daemon.received) >= 2)
    eventually(lambda: 0 in told)
    assert told.count(7) == 0


def test_hello_again_attaches_anew(producer: Producer, daemon: FakeDaemon) -> None:
    producer.send("t", b"1").result(10)
    daemon.do(lambda: daemon.tell(daemon.only_client, [Kind.HELLO_AGAIN, 1]))
    eventually(lambda: len(daemon.attaches) == 2)
    assert producer.send("t", b"2").result(10).offset == 1


def test_a_draining_worker_counts_as_one_connection(producer: Producer, daemon: FakeDaemon) -> None:
    """Each turn of the io thread once counted as another connection, from the first word of the worker's end on."""
    producer.send("t", b"1").result(10)
    daemon.do(lambda: daemon.tell(daemon.only_client, [Kind.DRAINING, "The daemon is draining."]))
    eventually(lambda: producer.stats().why_away)
    for number in range(3):
        # Held back until the next worker is there; each wakes the io thread.
        producer.send(f"t{number}", b"2")
        with pytest.raises(TimeoutError):
            producer.flush(0.01)
    assert producer.stats().connections == 1
    daemon.kill_worker()
    eventually(lambda: producer.stats().connections == 2)


def test_a_refused_topic_is_not_said_to_be_held(producer: Producer, daemon: FakeDaemon) -> None:
    """As one that waited for a row of the table of topics and then got none."""

    def refuse(client: Client, submit: Submit) -> bool:
        daemon.tell(client, [Kind.HOLD, submit.stream, 1, "there is no row yet"])
        daemon.tell(client, [Kind.REFUSED, "INVALID_TOPIC", "that is no name", submit.stream])
        return False

    daemon.accept = refuse
    with pytest.raises(errors.DeliveryFailed):
        producer.send("full", b"1").result(10)
    daemon.accept = lambda client, submit: False
    with pytest.raises(TimeoutError, match=r"yet: the daemon has not accepted it\."):
        producer.send("other", b"1").result(0.05)


def test_a_held_stream_waits_for_resume_and_others_continue(producer: Producer, daemon: FakeDaemon) -> None:
    def accept(client: Client, submit: Submit) -> bool:
        if submit.topic == "full" and not client.log and submit.stream not in released:
            client.held.add(submit.stream)
            daemon.tell(client, [Kind.HOLD, submit.stream, submit.seq, "the buffer pool is full"])
            return False
        return True

    released: set[int] = set()
    daemon.accept = accept
    held = [producer.send("full", b"%d" % n) for n in range(3)]
    assert producer.send("other", b"v").result(10).offset == 0
    eventually(lambda: daemon.only_client.held)
    assert not held[0].done()

    def resume() -> None:
        client = daemon.only_client
        (stream,) = client.held
        released.add(stream)
        client.held.clear()
        daemon.tell(client, [Kind.RESUME, stream, 1])

    daemon.do(resume)
    assert [delivery.result(10).offset for delivery in held] == [0, 1, 2]


def test_resend_goes_back_to_the_named_submission(producer: Producer, daemon: FakeDaemon) -> None:
    daemon.accept = lambda client, submit: False
    first = producer.send("t", b"1")
    eventually(lambda: len(daemon.received) == 1)
    second = producer.send("t", b"2")
    eventually(lambda: len(daemon.received) == 2)

    def resend() -> None:
        daemon.accept = lambda client, submit: True
        daemon.tell(daemon.only_client, [Kind.RESEND, 1, 1])

    daemon.do(resend)
    assert (first.result(10).offset, second.result(10).offset) == (0, 1)
    assert arrived(daemon.received) == [b"1", b"2", b"1", b"2"]


def test_records_of_a_forgotten_client_are_possibly_persisted(producer: Producer, daemon: FakeDaemon) -> None:
    """known=false: accepted and sent records fail, what was never sent goes on in new streams."""
    daemon.deliver = None
    accepted = producer.send("t", b"accepted")
    eventually(lambda: daemon.clients and daemon.only_client.log)
    daemon.accept = lambda client, submit: False
    sent = producer.send("t", b"sent")
    eventually(lambda: len(daemon.received) == 2)
    daemon.do(lambda: daemon.tell(daemon.only_client, [Kind.HOLD, 1, 2, "full"]))
    assert producer._engine.io is not None
    windows = producer._engine.io._session.streams.windows
    eventually(lambda: [window.held for window in list(windows.values())] == [True])
    unsent = producer.send("t", b"unsent")
    daemon.accept, daemon.deliver = (lambda client, submit: True), daemon.deliver_all
    daemon.kill_worker(forget=True)
    assert unsent.result(10).offset == 0
    for delivery in (accepted, sent):
        with pytest.raises(errors.DaemonLost, match="no longer knows this client") as caught:
            delivery.result(10)
        assert caught.value.persistence is Persistence.POSSIBLY_PERSISTED
    assert daemon.received[-1].stream != 1 and daemon.received[-1].seq == 1


def test_a_restarted_daemon_is_found_again(producer: Producer, daemon: FakeDaemon) -> None:
    producer.send("t", b"1").result(10)
    daemon.stop()
    meanwhile = producer.send("t", b"2")
    successor = FakeDaemon(daemon.run_dir, worker_epoch=7)
    try:
        assert meanwhile.result(10).offset == 0
        assert arrived(successor.received) == [b"2"]
    finally:
        producer.close()
        successor.stop()


def test_a_daemon_that_stays_away_fails_records_after_delivery_timeout(run_dir: Path) -> None:
    daemon = FakeDaemon(run_dir)
    producer = Producer(run_dir, delivery_timeout_ms=200)
    producer.send("t", b"1").result(10)
    daemon.stop()
    delivery = producer.send("t", b"2")
    with pytest.raises(errors.DaemonLost, match="No daemon for 200 ms") as caught:
        delivery.result(10)
    assert caught.value.persistence is Persistence.NOT_PERSISTED and caught.value.retriable
    successor = FakeDaemon(run_dir, worker_epoch=7)

    def is_delivered() -> bool:
        try:
            return producer.send("t", b"3").result(10).offset == 0
        except errors.DaemonLost:  # the pause before the next attempt was longer than its 200 ms
            return False

    eventually(is_delivered)
    producer.close()
    successor.stop()


def test_records_gather_in_few_submissions_while_the_daemon_is_away(
    producer: Producer, daemon: FakeDaemon
) -> None:
    producer.send("t", b"first").result(10)
    daemon.stop()
    eventually(lambda: producer._engine.outbox.waiters.reasons.last_word)
    deliveries = [producer.send("t", b"%d" % n) for n in range(5_000)]
    successor = FakeDaemon(daemon.run_dir, worker_epoch=7)
    assert deliveries[-1].result(10).offset == 4_999
    assert len(successor.received) < 20
    producer.close()
    successor.stop()


def test_an_unreadable_message_is_survived(producer: Producer, daemon: FakeDaemon) -> None:
    producer.send("t", b"1").result(10)
    client = daemon.only_client
    daemon.do(lambda: daemon.worker.send_multipart([client.routing_id, b"\xc1garbage"]))
    eventually(lambda: len(daemon.attaches) == 2)
    assert producer.send("t", b"2").result(10).offset == 1


def _child(producer: Producer, inherited: Delivery, results: Any) -> None:
    try:
        inherited.result(1)
    except errors.ForkedProducer as error:
        results.put(str(error))
    producer.flush(1)
    results.put(producer.send("t", b"child").result(10).offset)
    producer.close()


def test_a_forked_child_is_another_client_and_the_parent_continues(
    producer: Producer, daemon: FakeDaemon
) -> None:
    daemon.deliver = None
    inherited = producer.send("t", b"parent")
    eventually(lambda: daemon.clients and daemon.only_client.log)
    parent_id = daemon.only_client.client_id
    daemon.deliver = daemon.deliver_all
    context = multiprocessing.get_context("fork")
    results = context.Queue()
    child = context.Process(target=_child, args=(producer, inherited, results))
    child.start()
    assert "belongs to the parent process" in results.get(timeout=10)
    assert results.get(timeout=10) == 0
    child.join(10)
    assert child.exitcode == 0
    client = daemon.clients[parent_id]
    daemon.do(lambda: daemon.deliver_all(client, client.log[0]))
    assert inherited.result(10).topic == "t"
    assert producer.send("t", b"parent again").result(10).offset == 2
    ids = {submit.client_id for submit in daemon.received}
    assert len(ids) == 2
    assert sorted(int.from_bytes(client_id[16:], "big") for client_id in ids) == [0, 1]
    assert [len(client_id) for client_id in ids] == [20, 20]


def test_a_script_that_ends_without_close_still_delivers(daemon: FakeDaemon) -> None:
    script = (
        "import sys; from client_stub import Producer; p = Producer(sys.argv[1])\n"
        "for n in range(1000): p.send('t', b'%d' % n)"
    )
    root = Path(__file__).resolve().parents[3]
    done = subprocess.run(
        [sys.executable, "-c", script, str(daemon.run_dir)],
        env=os.environ | {"PYTHONPATH": str(root)},
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert len(arrived(daemon.received)) == 1000
    assert eventually(lambda: daemon.byes) == [False]


def test_a_dropped_producer_delivers_and_leaves(daemon: FakeDaemon) -> None:
    producer = Producer(daemon.run_dir)
    producer.send("t", b"v")
    del producer
    assert eventually(lambda: daemon.byes) == [False]
    assert arrived(daemon.received) == [b"v"]


def test_close_0_logs_open_submissions_while_the_daemon_is_away(
    producer: Producer, daemon: FakeDaemon
) -> None:
    producer.send("t", b"1").result(10)
    daemon.stop()
    eventually(lambda: producer._engine.outbox.waiters.reasons.last_word)
    told: list[Any] = []
    delivery = producer.send("t", b"2", on_delivery=lambda error, metadata: told.append(error))
    producer.close(0)
    with pytest.raises(errors.DeliveryCancelled, match="never sent") as caught:
        delivery.result(10)
    assert told == [caught.value]
    with pytest.raises(errors.ProducerClosed):
        producer.send("t", b"3")


def test_a_producer_dropped_while_the_daemon_is_away_still_delivers(daemon: FakeDaemon) -> None:
    producer = Producer(daemon.run_dir)
    producer.send("t", b"1").result(10)
    daemon.stop()
    outbox = producer._engine.outbox
    eventually(lambda: outbox.waiters.reasons.last_word)
    producer.send("t", b"2")
    del producer
    successor = FakeDaemon(daemon.run_dir, worker_epoch=7)
    assert eventually(lambda: successor.byes) == [False]
    assert arrived(successor.received) == [b"2"]
    successor.stop()


def test_a_close_after_the_gathering_takes_effect_in_the_next_turn(
    daemon: FakeDaemon, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The io thread once read the wish to end twice in a turn: dropped between the two, a producer's last
    records were neither gathered nor missed, and never sent."""
    producer = Producer(daemon.run_dir)
    producer.send("t", b"1").result(10)
    daemon.stop()
    outbox, io = producer._engine.outbox, producer._engine.io
    assert io is not None
    eventually(lambda: outbox.waiters.reasons.last_word)
    producer.send("t", b"2")
    gather = outbox.gather

    def gather_then_abandon(wants: Callable[[str], bool]) -> Any:
        gathered = gather(wants)
        io.abandon()
        return gathered

    monkeypatch.setattr(outbox, "gather", gather_then_abandon)
    successor = FakeDaemon(daemon.run_dir, worker_epoch=7)
    assert eventually(lambda: successor.byes) == [False]
    assert arrived(successor.received) == [b"2"]
    successor.stop()
