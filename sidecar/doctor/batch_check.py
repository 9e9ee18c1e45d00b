"""BatchCheck: counts the rows of a batch of Spark in Kafka by the headers of record batches, for ``txn verify``.

Rows and commit record of a batch are in one transaction, so their batches carry the same producer id and epoch: no row
is read. It shares no code with the sink but the record's form, and asks the brokers itself.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator
from typing import Final, NamedTuple

from client_stub.contract.error_codes import code_row
from client_stub.spark.exactly_once.commit_record import CommitRecord, unpack
from sidecar.doctor.transaction_admin import TransactionAdmin, TransactionAdminError
from sidecar.metadata.answer import MetadataAnswer, TopicAnswer
from sidecar.protocol.fetch import (
    EARLIEST,
    LATEST,
    fetch_request,
    offset_request,
    parse_fetch,
    parse_offset,
    partition_of_key,
)
from sidecar.protocol.fetched_batches import FetchedBatch, fetched_batches
from sidecar.protocol.messages import ApiKey

FETCH_BYTES: Final = 4 << 20
Identity = tuple[int, int]
"""Producer id and epoch."""


class Committed(NamedTuple):
    """A commit record, and what the batches of its transaction carry."""

    record: CommitRecord
    identity: Identity


class Checked(NamedTuple):
    """``rows``: those that readers with read_committed see, by partition."""

    committed: Committed
    rows: dict[str, int]

    @property
    def found(self) -> int:
        return sum(self.rows.values())


class History:
    """The commit records of a key, as the batches of its partition tell."""

    def __init__(self, key: bytes) -> None:
        self._key = key
        self._undecided: dict[int, Committed] = {}
        """By producer id: whose marker has not come."""
        self.committed: dict[int, Committed] = {}
        """By number of the batch, the one that was committed last at the end."""

    def read(self, batch: FetchedBatch) -> None:
        """Raises ValueError for a record that cannot be read."""
        if batch.is_marker:
            ended = self._undecided.pop(batch.producer_id, None)
            if ended is not None and batch.is_commit:
                # After txn restart a number comes again.
                self.committed.pop(ended.record.batch, None)
                self.committed[ended.record.batch] = ended
            return
        for record in batch.records():
            if record.key == self._key and record.value is not None:
                identity = (batch.producer_id, batch.epoch)
                self._undecided[batch.producer_id] = Committed(unpack(record.value), identity)


class BatchCheck(TransactionAdmin):
    """Use it from one loop, and close it."""

    async def check(self, commits_topic: str, key: str, batch: int | None) -> Checked:
        """Count batch ``batch`` of the sink ``key``, or its last one. Raises TransactionAdminError."""
        committed = await self._committed(commits_topic, key, batch)
        rows: Counter[str] = Counter()
        for topic in committed.record.topics:
            answer, found = await self._topic(topic)
            for each in found.partitions:
                count = await self._count(answer, topic, each.partition, committed.identity)
                if count:
                    rows[f"{topic}-{each.partition}"] = count
        return Checked(committed, dict(rows))

    async def _committed(self, topic: str, key: str, batch: int | None) -> Committed:
        answer, found = await self._topic(topic)
        partition = partition_of_key(key.encode(), len(found.partitions))
        history = History(key.encode())
        async for each in self._batches(answer, topic, partition):
            history.read(each)
        records = history.committed
        if not records:
            raise TransactionAdminError(f"{key} has no commit record in {topic}.")
        number = list(records)[-1] if batch is None else batch
        if number not in records:
            kept = ", ".join(map(str, sorted(records)[-5:]))
            raise TransactionAdminError(
                f"{key} has no commit record of batch {number} in {topic} any more: it is compacted, and has {kept}."
            )
        return records[number]

    async def _count(self, answer: MetadataAnswer, topic: str, partition: int, identity: Identity) -> int:
        """Committed records of this identity."""
        count = undecided = 0
        async for each in self._batches(answer, topic, partition):
            if each.producer_id != identity[0]:
                continue
            if each.is_marker:
                count += undecided if each.is_commit else 0
                undecided = 0
            elif each.epoch == identity[1]:
                undecided += each.record_count
        return count

    async def _batches(
        self, answer: MetadataAnswer, topic: str, partition: int
    ) -> AsyncIterator[FetchedBatch]:
        """All batches of a partition, up to its present end."""
        found = next(each for each in answer.topics if each.name == topic)
        leader = next(each.leader for each in found.partitions if each.partition == partition)
        node = next((each for each in answer.brokers if each.id == leader), None)
        if node is None:
            raise TransactionAdminError(f"{topic}-{partition} has no leader.")
        await self._connect(node)
        offset = await self._offset(topic, partition, EARLIEST)
        end = await self._offset(topic, partition, LATEST)
        while offset < end:
            request = fetch_request(
                self._version(ApiKey.FETCH), topic, partition, offset, bytes_max=FETCH_BYTES
            )
            fetched = parse_fetch(await self._ask(ApiKey.FETCH, request))
            _check(topic, fetched.error_code)
            before = offset
            for each in fetched_batches(fetched.records):
                if each.last_offset >= offset:
                    yield each
                    offset = each.last_offset + 1
            if offset == before:
                return

    async def _offset(self, topic: str, partition: int, which: int) -> int:
        request = offset_request(self._version(ApiKey.LIST_OFFSETS), topic, partition, which)
        code, offset = parse_offset(await self._ask(ApiKey.LIST_OFFSETS, request))
        _check(topic, code)
        return offset

    async def _topic(self, name: str) -> tuple[MetadataAnswer, TopicAnswer]:
        answer = await self.metadata([name])
        found = next((each for each in answer.topics if each.name == name), None)
        if found is None or found.error_code or not found.partitions:
            raise TransactionAdminError(f"Topic {name} is not in Kafka.")
        return answer, found

    def _version(self, key: ApiKey) -> int:
        assert self._walk.opened is not None
        return self._walk.opened.versions.get(key, 0)


def _check(topic: str, code: int) -> None:
    if code:
        row = code_row(code)
        raise TransactionAdminError(f"Topic {topic} cannot be read: {row.name}, {row.text}")
