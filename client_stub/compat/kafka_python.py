"""A replacement of ``kafka.KafkaProducer`` (kafka-python, 2.x and 3.x) that uses the daemon of this host.

A program calls it, in any of its threads.

::

    from client_stub.compat.kafka_python import KafkaProducer, KafkaTimeoutError

The same as there: send() returns a future with get(), add_callback() and add_errback(); the serializers; the fields of
the metadata; the calls of transactions. Different: configuration and metrics are the daemon's. Errors are those of
``client_stub.errors``; KafkaTimeoutError is this module's.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Final, NamedTuple

from client_stub.compat.partition_choice import PartitionChoice, takes
from client_stub.compat.settings import asked_cluster, producer_settings
from client_stub.engine.consumers import group_of, leader_epoch_of
from client_stub.engine.engine import MAX_BLOCK_MS
from client_stub.errors import (
    BufferExhausted,
    DaemonUnreachable,
    MetadataTimeout,
    SidecarError,
    TransactionTimeout,
)
from client_stub.inner_producer import InnerProducer
from client_stub.io.topic_lookup import PartitionInfo
from client_stub.outbox.delivery import Delivery
from client_stub.records.arguments import check_callable, milliseconds
from client_stub.records.offsets import OffsetToCommit
from client_stub.records.packer import Headers
from client_stub.records.record_fields import checked_headers

KafkaError = SidecarError
_SERIALIZERS: Final = ("key_serializer", "value_serializer")
_TAKEN: Final = ("key.serializer", "value.serializer", "max.block.ms", "partitioner")


class KafkaTimeoutError(SidecarError):
    """get(), flush(), or a send without room took longer than its timeout."""

    default_name = "KafkaTimeoutError"
    default_retriable = True


class TopicPartition(NamedTuple):
    topic: str
    partition: int


class RecordMetadata(NamedTuple):
    """The position of a record in the log. Sizes are -1 for a missing key or value, and ``checksum`` is always None."""

    topic: str
    partition: int
    topic_partition: TopicPartition
    offset: int
    timestamp: int
    checksum: int | None
    serialized_key_size: int
    serialized_value_size: int
    serialized_header_size: int


class FutureRecordMetadata:
    """The future of one record. Thread-safe. Callbacks run in a thread of the producer, or at once if the outcome is
    known.
    """

    def __init__(self, delivery: Delivery, sizes: tuple[int, int, int]) -> None:
        self._delivery = delivery
        self._sizes = sizes

    @property
    def is_done(self) -> bool:
        return self._delivery.done()

    def succeeded(self) -> bool:
        return self.is_done and self.exception is None

    def failed(self) -> bool:
        return self.is_done and self.exception is not None

    def retriable(self) -> bool:
        """Whether the record has failed with an error that may pass, so that sending it again may succeed."""
        error = self.exception
        return error is not None and error.retriable

    @property
    def exception(self) -> SidecarError | None:
        """The record's error; None if it has none so far."""
        return self._delivery.exception(0) if self.is_done else None

    @property
    def value(self) -> RecordMetadata | None:
        """The record's metadata; None until it is delivered."""
        return self.get(0) if self.succeeded() else None

    def get(self, timeout: float | None = None) -> RecordMetadata:
        """Wait at most ``timeout`` seconds for the metadata. Raises KafkaTimeoutError, or the record's error."""
        try:
            found = self._delivery.result(timeout)
        except SidecarError:
            raise
        except TimeoutError as error:
            raise KafkaTimeoutError(f"Timeout after waiting for {timeout} secs. {error}") from None
        partition = TopicPartition(found.topic, found.partition)
        return RecordMetadata(*partition, partition, found.offset, found.timestamp_ms, None, *self._sizes)

    def add_callback(self, f: Callable[..., object], *args: Any, **kwargs: Any) -> FutureRecordMetadata:
        """Call ``f(*args, metadata, **kwargs)`` when the record is delivered."""
        check_callable("f", f, "f(*args, metadata, **kwargs)")
        self._delivery.add_done_callback(
            lambda _: partial(f, *args, **kwargs)(self.get(0)) if self.succeeded() else None
        )
        return self

    def add_errback(self, f: Callable[..., object], *args: Any, **kwargs: Any) -> FutureRecordMetadata:
        """Call ``f(*args, error, **kwargs)`` when the record has failed."""
        check_callable("f", f, "f(*args, error, **kwargs)")
        self._delivery.add_done_callback(
            lambda _: partial(f, *args, **kwargs)(self.exception) if self.failed() else None
        )
        return self

    def add_both(self, f: Callable[..., object], *args: Any, **kwargs: Any) -> FutureRecordMetadata:
        return self.add_callback(f, *args, **kwargs).add_errback(f, *args, **kwargs)


class KafkaProducer:
    """The producer; see the module. ``sidecar_run_dir`` and ``sidecar_token`` name the daemon, ``client_id`` names the
    client. Of the other settings only ``key_serializer``, ``value_serializer``, ``max_block_ms`` and ``partitioner``
    have an effect. Without ``partitioner`` keys are partitioned by murmur2, as there. Thread-safe and fork-safe.

    ``transactional_id`` and ``transaction_timeout_ms`` are this producer's. Raises ValueError for a misspelt name of a
    setting that has an effect.
    """

    def __init__(self, **configs: Any) -> None:
        self._key_serializer, self._value_serializer = (
            _checked_serializer(name, configs.pop(name, None)) for name in _SERIALIZERS
        )
        partitioner = configs.pop("partitioner", None)
        self._max_block_ms = milliseconds("max_block_ms", configs.pop("max_block_ms", MAX_BLOCK_MS))
        named = {_dotted(name): value for name, value in configs.items()}
        self._producer = InnerProducer(max_block_ms=self._max_block_ms, **producer_settings(named, _TAKEN))
        self._producer.engine.ask_for(asked_cluster(named))
        self._producer.engine.partition_by("murmur2_random")
        self._choice: PartitionChoice | None = None
        if partitioner is not None:
            self._choice = PartitionChoice(partitioner, self._look_up, self._max_block_ms / 1e3)

    def send(
        self,
        topic: str,
        value: Any = None,
        key: Any = None,
        headers: Headers | None = None,
        partition: int | None = None,
        timestamp_ms: int | None = None,
    ) -> FutureRecordMetadata:
        """Queue one record. Raises ValueError without key and value, TypeError if the serializers return anything but
        bytes, KafkaTimeoutError when there is no room within max_block_ms, and SidecarError for a record that is
        refused.
        """
        if value is None and key is None:
            raise ValueError("Need at least one: key or value")
        key_bytes = _serialized(self._key_serializer, topic, headers, key)
        value_bytes = _serialized(self._value_serializer, topic, headers, value)
        # Checked before the send: an error after it would look as if the record was not sent.
        pairs = None if headers is None else checked_headers(headers)
        header_bytes = sum(len(name.encode()) + len(each or b"") for name, each in pairs) if pairs else -1
        if partition is None and self._choice is not None:
            partition = self._choice.of(topic, (key, key_bytes, value, value_bytes))
        try:
            delivery = self._producer.send(topic, value_bytes, key_bytes, pairs, partition, timestamp_ms)
        except (BufferExhausted, DaemonUnreachable) as error:
            raise KafkaTimeoutError(str(error)) from error
        return FutureRecordMetadata(delivery, (_size(key_bytes), _size(value_bytes), header_bytes))

    def flush(self, timeout: float | None = None) -> None:
        """Wait at most ``timeout`` seconds (None: without limit) for all outcomes. Raises KafkaTimeoutError."""
        try:
            self._producer.flush(timeout)
        except TimeoutError as error:
            raise KafkaTimeoutError(str(error)) from None

    def close(self, timeout: float | None = None) -> None:
        """Flush and close. Records that are undecided after ``timeout`` seconds fail."""
        self._producer.close(timeout)

    def init_transactions(self) -> None:
        """Get the transactional id, once, before the first transaction. Raises KafkaTimeoutError after max_block_ms, or
        without a daemon; the same call again continues to wait, as for the three calls below.
        """
        self._transact(self._producer.init_transactions)

    def begin_transaction(self) -> None:
        """Begin a transaction."""
        self._producer.begin_transaction()

    def send_offsets_to_transaction(self, offsets: Mapping[Any, Any], group_metadata: Any) -> None:
        """Commit ``{TopicPartition: OffsetAndMetadata}`` with the transaction, for ``consumer.group_metadata()`` or a
        group's id.
        """
        entries = [
            OffsetToCommit(
                each.topic,
                each.partition,
                *(
                    (found, -1, "")
                    if isinstance(found, int)
                    else (found.offset, leader_epoch_of(found), found.metadata or "")
                ),
            )
            for each, found in offsets.items()
        ]
        group = group_metadata if isinstance(group_metadata, str) else group_of(group_metadata)
        self._transact(partial(self._producer.send_offsets_to_transaction, entries, group))

    def commit_transaction(self) -> None:
        """Send all, wait for all, and commit."""
        self._transact(self._producer.commit_transaction)

    def abort_transaction(self) -> None:
        """End the transaction so that nobody with read_committed sees it."""
        self._transact(self._producer.abort_transaction)

    def _transact(self, call: Callable[[], None]) -> None:
        try:
            call()
        except (TransactionTimeout, DaemonUnreachable) as error:
            raise KafkaTimeoutError(str(error)) from error

    def partitions_for(self, topic: str) -> set[int]:
        """Ids of the topic's partitions. Raises KafkaTimeoutError for a topic that Kafka does not have."""
        return {each.partition for each in self._look_up(topic, self._max_block_ms / 1e3)}

    def _look_up(self, topic: str, timeout: float) -> tuple[PartitionInfo, ...]:
        """The topic's partitions. Raises KafkaTimeoutError after ``timeout`` seconds."""
        try:
            return self._producer.partitions_for(topic, timeout)
        except MetadataTimeout as error:
            raise KafkaTimeoutError(str(error)) from error

    def bootstrap_connected(self) -> bool:
        """Whether a worker of the daemon has accepted this producer."""
        return self._producer.stats().is_connected

    def metrics(self, raw: bool = False) -> dict[str, Any]:
        """Counts of this producer. All other metrics are the daemon's."""
        stats = self._producer.stats()
        return {
            "producer-metrics": {name.replace("_", "-"): getattr(stats, name) for name in stats.__slots__}
        }

    def __enter__(self) -> KafkaProducer:
        return self

    def __exit__(self, *error: object) -> None:
        self._producer.__exit__(*error)  # type: ignore[arg-type]


def _dotted(name: str) -> str:
    """client_id → client.id; sidecar_run_dir → sidecar.run_dir."""
    if name.startswith("sidecar_"):
        return "sidecar." + name.removeprefix("sidecar_")
    return name.replace("_", ".")


def _checked_serializer(name: str, given: Any) -> Any:
    if given is not None and not callable(given) and not hasattr(given, "serialize"):
        raise TypeError(
            f"{name} must be a function from an object to bytes, or have serialize(topic, headers, data), "
            f"not {type(given).__name__}."
        )
    if hasattr(given, "serialize") and not takes(given.serialize, 3):  # (topic, headers, data), as in 3.x
        return _WithoutHeaders(given)
    return given


class _WithoutHeaders:
    """A serializer of kafka-python 2.x, whose serialize() takes (topic, data)."""

    def __init__(self, serializer: Any) -> None:
        self._serialize = serializer.serialize

    def serialize(self, topic: str, _headers: object, data: Any) -> Any:
        return self._serialize(topic, data)


def _serialized(serializer: Any, topic: str, headers: Any, given: Any) -> Any:
    """The result of a serializer as kafka-python calls it: a function of the object, an object with serialize(topic,
    headers, data), or None.
    """
    if serializer is None:
        return given
    if hasattr(serializer, "serialize"):
        return serializer.serialize(topic, headers or [], given)
    return serializer(given)


def _size(given: bytes | None) -> int:
    return -1 if given is None else len(given)
