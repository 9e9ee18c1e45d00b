"""MD-16: the controller's pushes, as its workers take them. Once with the real controller over two workers, and once
with one real worker whose controller is this test, which may say what no controller of ours would."""

from __future__ import annotations

import contextlib
import os
import secrets
import shutil
import signal
import tempfile
import threading
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import TypeVar

import msgpack
import pytest
import zmq

from client_stub import Producer, errors
from client_stub.contract.wire import Kind
from sidecar.common.control import (
    ControlMessage,
    NeedTopics,
    PartitionUpdate,
    Ready,
    Start,
    UpdateError,
    UpdateMetadata,
    UpdateMetadataReply,
)
from sidecar.common.control_codec import ControlDecoder, encode_message
from sidecar.common.model import Node
from sidecar.common.tickets import attach_ticket
from sidecar.config.loader import load_config
from sidecar.controller.workers.standby_worker import StandbyWorker
from sidecar.metadata.snapshot import LEADER_DURING_DELETE, WHOLE_TOPIC
from sidecar.shm.segment import Segment
from sidecar.tools.testing.daemon import StartDaemon
from sidecar.tools.testing.fake_broker import FakeBroker
from sidecar.tools.testing.kafka_frames import Api
from sidecar.tools.testing.waiting import wait_until

from .harness import FAST, OUTCOME_S, Harness

pytestmark = [pytest.mark.process]

CLIENTS = 4
WORKER_EPOCH = 7
CONTROLLER_EPOCH = 5
TIMEOUT_S = 20.0
POLL_MS = 50
DELETED_S = 60.0
"""A topic is taken as deleted after several answers over two seconds; a busy machine takes its time."""
Message = TypeVar("Message", NeedTopics, Ready, UpdateMetadataReply)


def test_md_16_a_topic_is_deleted_and_made_anew(start_daemon: StartDaemon) -> None:
    """MD-16: all workers. The topic goes: records that wait, or are on the wire in vain, fail as deleted. It comes
    again under another id with other partitions, and nothing of the old one is left."""
    with contextlib.ExitStack() as stack:
        kafka = stack.enter_context(FakeBroker(nodes=2))
        harness = Harness(
            kafka, start_daemon(kafka.bootstrap_servers, settings={**FAST, "daemon.workers": 2})
        )
        topic = harness.new_topic(6)
        # Else the first clients have but one worker to go to, and stay there.
        wait_until(
            lambda: [worker["state"] for worker in harness.daemon.info()["workers"]] == ["ready"] * 2,
            "both workers to be ready",
        )
        clients = [stack.enter_context(harness.sender(topic)) for _ in range(CLIENTS)]
        for client in clients:
            for partition in range(6):
                client.send(partition)
            client.offsets()
        pids = harness.daemon.worker_pids()
        assert len({request.connection for request in harness.produced(topic)}) == 4, (
            "two workers on two brokers"
        )

        for partition in range(6):
            kafka.move_leader(topic, partition, -1)
        waiting = [client.send(5) for client in clients]
        kafka.delete_topic(topic)
        for delivery in waiting:
            assert isinstance(delivery.exception(DELETED_S), errors.UnknownTopicOrPartition)

        kafka.create_topic(topic, 2)
        for client in clients:
            keyless = [client.producer.send(topic, b"new|%d" % number) for number in range(50)]
            assert {delivery.result(OUTCOME_S).partition for delivery in keyless} <= {0, 1}
        assert len(kafka.records(topic)) == CLIENTS * 50
        assert not kafka.bad_batches
        assert harness.daemon.worker_pids() == pids


def test_md_16_a_topic_deleted_while_nobody_used_it(start_daemon: StartDaemon) -> None:
    """MD-16: a topic that had expired at the controller is deleted: the workers knew it still, and hear of it as soon
    as somebody uses it. Its records fail as deleted, not at their deadline, and it may come again."""
    with contextlib.ExitStack() as stack:
        kafka = stack.enter_context(FakeBroker(nodes=1))
        settings = {"metadata.max.idle.ms": 5_000, "metadata.max.age.ms": 500, "daemon.workers": 2}
        harness = Harness(kafka, start_daemon(kafka.bootstrap_servers, settings={**FAST, **settings}))
        topic, other = harness.new_topic(2), harness.new_topic(1)
        sender, busy = stack.enter_context(harness.sender(topic)), stack.enter_context(harness.sender(other))
        sender.send()
        assert sender.offsets() == [0]

        def is_expired() -> bool:
            busy.send().result(OUTCOME_S)
            asked = {each.name for each in kafka.requests(Api.METADATA)[-1].message.topics or ()}
            return other in asked and topic not in asked

        wait_until(is_expired, "the topic to be asked for no more", timeout_s=OUTCOME_S)
        kafka.delete_topic(topic)
        error = sender.send().exception(DELETED_S)
        assert isinstance(error, errors.TopicDeleted), error
        kafka.create_topic(topic, 1)
        assert sender.producer.send(topic, b"new").result(OUTCOME_S).partition == 0
        assert not kafka.bad_batches


def test_md_16_a_topic_deleted_while_no_daemon_was_there(start_daemon: StartDaemon) -> None:
    """MD-16: a daemon dies with a batch that waits for a leader. The topic is deleted before the next daemon starts,
    which has never heard of it. The batch fails as deleted, not at its deadline."""
    with contextlib.ExitStack() as stack:
        kafka = stack.enter_context(FakeBroker(nodes=1))
        harness = Harness(kafka, start_daemon(kafka.bootstrap_servers, settings=FAST))
        topic = harness.new_topic(1)
        sender = stack.enter_context(harness.sender(topic))
        sender.send()
        assert sender.offsets() == [0]
        kafka.move_leader(topic, 0, -1)
        waiting = sender.send()
        sender.producer.flush(OUTCOME_S, until="accepted")
        workers = harness.daemon.worker_pids()
        harness.daemon.kill()
        for pid in workers:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        kafka.delete_topic(topic)
        harness.daemon.start()
        error = waiting.exception(DELETED_S)
        assert isinstance(error, errors.TopicDeleted), error


class OwnController:
    """One worker process, and everything that it needs of a controller: START, the control endpoint, pushes."""

    def __init__(self, folder: Path, bootstrap_servers: str) -> None:
        self.run_dir = folder
        self._key = secrets.token_bytes(32)
        self._path = Path("/dev/shm") / f"kafka-sidecar-push-{uuid.uuid4().hex[:8]}"
        self.segment = Segment.create(
            self._path, page_bytes=16_384, buffer_memory_bytes=8 << 20, clients_max=16, instance_id=b"push"
        )
        self.segment.prepare_slot(0)
        self._decoder = ControlDecoder()
        self._heard: list[ControlMessage] = []
        servers = [f"bootstrap.servers={bootstrap_servers}", "buffer.memory=8388608", "linger.ms=0"]
        self._endpoint = f"ipc://{folder}/worker-0.sock"
        self._worker = StandbyWorker.spawn()
        self._worker.socket.settimeout(TIMEOUT_S)
        with self._path.open("r+b") as file:
            start = Start(
                worker_index=0,
                worker_epoch=WORKER_EPOCH,
                slot=0,
                incarnation=1,
                endpoint=self._endpoint,
                instance_key=self._key,
                segment_fd=file.fileno(),
                controller_epoch=CONTROLLER_EPOCH,
                segment_path=str(self._path),
                config=load_config(None, servers, {}).to_mapping(),
                extra={
                    "run_dir": str(folder),
                    "workers_lock": str(folder / "workers.lock"),
                },
            )
            self._worker.hand_over(start)
            self.say(start)
            self.hear(Ready)
        self._ended = threading.Event()
        self._admitting = threading.Thread(target=self._admit, daemon=True)
        self._admitting.start()

    def say(self, message: ControlMessage) -> None:
        self._worker.socket.sendall(encode_message(message))

    def hear(self, kind: type[Message]) -> Message:
        """The next message of that kind; others are passed over."""
        while True:
            while self._heard:
                message = self._heard.pop(0)
                if isinstance(message, kind):
                    return message
            data = self._worker.socket.recv(1 << 16)
            assert data, "the worker has ended"
            self._heard += self._decoder.feed(data)

    def push(
        self,
        *partitions: PartitionUpdate,
        brokers: tuple[Node, ...],
        controller_epoch: int = CONTROLLER_EPOCH,
        worker_epoch: int = WORKER_EPOCH,
        is_full: bool = True,
    ) -> int:
        """An update; the error that the worker answers with."""
        self.say(
            UpdateMetadata(
                controller_id=controller_epoch,
                controller_epoch=controller_epoch,
                worker_epoch=worker_epoch,
                brokers=brokers,
                partitions=partitions,
                is_full=is_full,
                cluster_id="own",
            )
        )
        return self.hear(UpdateMetadataReply).error

    def counter(self, name: str) -> int:
        return self.segment.slot(0).counters.get(name)

    def end(self) -> None:
        self._ended.set()
        self._admitting.join()
        self._worker.end()
        self.segment.close()
        self._path.unlink()

    def _admit(self) -> None:
        """Every HELLO is assigned to the one worker."""
        with zmq.Context() as context, context.socket(zmq.ROUTER) as endpoint:
            endpoint.linger = 0
            endpoint.bind(f"ipc://{self.run_dir}/control.sock")
            while not self._ended.is_set():
                if not endpoint.poll(POLL_MS):
                    continue
                routing_id, body = endpoint.recv_multipart()
                _, _, client_id, name, *_ = msgpack.unpackb(body)
                ticket = attach_ticket(self._key, client_id, name, WORKER_EPOCH)
                answer = msgpack.packb([Kind.ASSIGNED, self._endpoint, WORKER_EPOCH, ticket])
                endpoint.send_multipart([routing_id, answer])


def asked_for(controller: OwnController) -> set[str]:
    """The topics of the next NEED_TOPICS that does not only say what is in use."""
    while True:
        message = controller.hear(NeedTopics)
        if message.topics:
            return set(message.topics)


@pytest.fixture
def kafka() -> Iterator[FakeBroker]:
    with FakeBroker({"x": 2}, nodes=2) as made:
        yield made


@pytest.fixture
def controller(kafka: FakeBroker) -> Iterator[OwnController]:
    folder = Path(tempfile.mkdtemp(prefix="ks-", dir="/tmp"))
    made = OwnController(folder, kafka.bootstrap_servers)
    yield made
    made.end()
    shutil.rmtree(folder, ignore_errors=True)


def test_md_16_a_stale_push_is_refused(kafka: FakeBroker, controller: OwnController) -> None:
    """MD-16: an update of an older controller, or for an earlier worker, is refused and counted and changes nothing:
    records go on to where the newest update says. One without the topic is no deletion: the worker asks for what it
    holds records of, and fails them when it is told that the topic is gone."""
    addresses = {node: kafka.address(node).rpartition(":") for node in (1, 2)}
    brokers = tuple(Node(node, host, int(port)) for node, (host, _, port) in addresses.items())
    topic_id = kafka._topic_ids["x"].bytes
    good = [PartitionUpdate("x", topic_id, index, index + 1, 0) for index in (0, 1)]
    wrong = PartitionUpdate("x", topic_id, 0, 2, 9)
    assert controller.push(*good, brokers=brokers) == UpdateError.NONE
    version = controller.counter("metadata_version")

    stale = [
        controller.push(wrong, brokers=brokers[1:], controller_epoch=CONTROLLER_EPOCH - 1),
        controller.push(wrong, brokers=brokers[1:], worker_epoch=WORKER_EPOCH - 1),
        controller.push(brokers=(), controller_epoch=0),
    ]
    assert stale == [
        UpdateError.STALE_CONTROLLER_EPOCH,
        UpdateError.STALE_WORKER_EPOCH,
        UpdateError.STALE_CONTROLLER_EPOCH,
    ]
    assert controller.counter("metadata_version") == version
    assert controller.counter("stale_updates_refused_total") == 3
    with Producer(
        run_dir=controller.run_dir, client_name="push", delivery_timeout_ms=OUTCOME_S * 1_000
    ) as producer:
        for partition in (0, 1):
            assert producer.send("x", b"1", partition=partition).result(OUTCOME_S).offset == 0
        assert [request.node for request in kafka.requests(Api.PRODUCE, "x")] == [1, 2]

        # A newer controller: without x first, then x under another id with one partition only.
        newer = CONTROLLER_EPOCH + 1
        for partition in (0, 1):
            kafka.move_leader("x", partition, -1)
        waiting = producer.send("x", b"2", partition=1)
        wait_until(lambda: controller.counter("records_accepted_total") == 3, "the record to be accepted")
        controller.say(
            UpdateMetadata(newer, newer, WORKER_EPOCH, brokers, is_full=True, cluster_id="own", version=9)
        )
        assert asked_for(controller) == {"x"}
        assert controller.hear(UpdateMetadataReply).error == UpdateError.NONE
        assert not waiting.done()
        gone = PartitionUpdate("x", None, WHOLE_TOPIC, LEADER_DURING_DELETE, -1)
        told = controller.push(gone, brokers=brokers, controller_epoch=newer, is_full=False)
        assert told == UpdateError.NONE
        error = waiting.exception(OUTCOME_S)
        assert isinstance(error, errors.UnknownTopicOrPartition)
        kafka.delete_topic("x")
        kafka.create_topic("x", 1)
        anew = PartitionUpdate("x", kafka._topic_ids["x"].bytes, 0, 1, 0)
        assert controller.push(*good, brokers=brokers) == UpdateError.STALE_CONTROLLER_EPOCH
        assert controller.push(anew, brokers=brokers, controller_epoch=newer) == UpdateError.NONE
        found = [producer.send("x", b"3").result(OUTCOME_S) for _ in range(10)]
        assert {(each.partition, each.offset) for each in found} == {(0, offset) for offset in range(10)}
    assert controller.counter("sender_exceptions_total") == 0
    assert not kafka.bad_batches
