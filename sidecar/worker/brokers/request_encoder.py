"""RequestEncoder: turns drained batches into the buffers of one Produce request.

Order: request buffer → descriptor → encode. The descriptor says which records are sent under which identity, and is
published before the first byte can leave. The encoded bytes exist only in the private request buffer, which is free
again as soon as the kernel has taken them. A retry encodes the same range again.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from concurrent.futures import Executor
from typing import TYPE_CHECKING, Final, NamedTuple, TypeAlias

from sidecar.common.wording import PLEASE_REPORT
from sidecar.kernel import BATCH_HEADER_BYTES, write_batch_header
from sidecar.shm.in_work import BATCH_WORDS, batch_word
from sidecar.worker.brokers.compression import CODEC_ATTRIBUTES, compress

if TYPE_CHECKING:
    from sidecar.producer.producer_batch import ProducerBatch
    from sidecar.producer.topic_settings import TopicSettings
    from sidecar.shm.in_work import InWork

log = logging.getLogger(__name__)

NO_CODEC = "none"
TRANSACTIONAL_ATTRIBUTE: Final = 0x10
"""Bit of a batch's attributes: its records count once their transaction is committed."""


EncodedBatch: TypeAlias = "tuple[ProducerBatch, memoryview]"


class CopiedBatch(NamedTuple):
    """A batch on its way to a codec. ``word`` marks it in the slot as in work; ``data`` is its records section.

    ``settings`` are the topic's when it was copied. A reload may change them before the codec has ended.
    """

    batch: ProducerBatch
    word: int
    data: bytes
    settings: TopicSettings


class RequestEncoder:
    """Encodes batches into a request buffer, each with its topic's codec. Codecs run on ``executor``, off the loop.

    ``in_work`` names the batch that is being encoded, by its descriptor's ``serial``, for a later adopter of the slot.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        executor: Executor,
        *,
        in_work: InWork,
        serial: Callable[[int], int],
    ) -> None:
        self._loop = loop
        self._executor = executor
        self._in_work = in_work
        self._serial = serial

    def encode(
        self, batches: list[ProducerBatch], buffer: memoryview
    ) -> tuple[list[EncodedBatch], list[tuple[ProducerBatch, str]]] | None:
        """Encode without compression: the complete v2 batches, one after another, in ``buffer``.

        Also returns the batches whose records cannot be read back (damage, or a bug), each with the reason. None if a
        topic among the batches is compressed: then the records are copied for the codec.
        """
        for batch in batches:
            if batch.queue.settings.compression_type != NO_CODEC:
                return None
        encoded: list[EncodedBatch] = []
        unsendable: list[tuple[ProducerBatch, str]] = []
        words = self._in_work.words
        position = 0
        attributes = 0 if batches[0].queue.transaction is None else TRANSACTIONAL_ATTRIBUTE
        for batch in batches:
            words[0] = BATCH_WORDS + self._serial(batch.descriptor)
            # kill point: encode.begin of batch
            try:
                size = batch.records.encode_into(
                    buffer[position:],
                    producer_id=batch.producer_id,
                    epoch=batch.epoch,
                    base_sequence=batch.base_sequence,
                    attributes=attributes,
                )
            except ValueError as error:
                unsendable.append((batch, str(error)))
                continue
            encoded.append((batch, buffer[position : position + size]))
            position += size
            # kill point: encode.batch
        words[0] = 0
        return encoded, unsendable

    def copy_records(
        self, batches: list[ProducerBatch], buffer: memoryview
    ) -> tuple[list[CopiedBatch], list[tuple[ProducerBatch, str]]]:
        """Copy the records sections of the batches, for a codec that runs in a thread. Returned with the batches
        that cannot be sent, as by :meth:`encode`.

        After this, neither journal nor descriptors are read: before a codec runs, records may expire and be settled,
        and their descriptors and pages be freed.
        """
        plain: list[CopiedBatch] = []
        unsendable: list[tuple[ProducerBatch, str]] = []
        words = self._in_work.words
        for batch in batches:
            words[0] = word = batch_word(self._serial(batch.descriptor))
            # kill point: encode.begin of batch
            try:
                records_bytes = batch.records.encode_records_into(buffer)
            except ValueError as error:
                unsendable.append((batch, str(error)))
                continue
            data = bytes(buffer[:records_bytes])
            plain.append(CopiedBatch(batch, word, data, batch.queue.settings))
        words[0] = 0
        return plain, unsendable

    async def compress(self, plain: list[CopiedBatch], buffer: memoryview) -> list[EncodedBatch]:
        """Compress off the loop and write the batches into ``buffer``. If a codec fails, the batch is sent
        uncompressed.
        """
        outputs = await self._loop.run_in_executor(
            self._executor,
            lambda: [self._compress(each.word, each.settings, each.data) for each in plain],
        )
        encoded: list[EncodedBatch] = []
        position = 0
        for (batch, _, data, settings), output in zip(plain, outputs, strict=True):
            attributes = 0 if batch.queue.transaction is None else TRANSACTIONAL_ATTRIBUTE
            # Output that is not smaller than its input goes uncompressed.
            body = data if output is None else output
            start = position + BATCH_HEADER_BYTES
            buffer[start : start + len(body)] = body
            write_batch_header(
                buffer[position:],
                len(body),
                producer_id=batch.producer_id,
                epoch=batch.epoch,
                base_sequence=batch.base_sequence,
                attributes=attributes
                if output is None
                else attributes | CODEC_ATTRIBUTES[settings.compression_type],
                count=batch.records.count,
                first_timestamp_ms=batch.records.first_timestamp_ms,
                max_timestamp_ms=batch.records.max_timestamp_ms,
            )
            encoded.append((batch, buffer[position : start + len(body)]))
            position = start + len(body)
        # kill point: encode.compressed
        return encoded

    def _compress(self, word: int, settings: TopicSettings, data: bytes) -> bytes | None:
        index = self._in_work.begin_thread(word)
        try:
            return _try_compress(settings, data)
        finally:
            self._in_work.end_thread(index)


def _try_compress(settings: TopicSettings, data: bytes) -> bytes | None:
    codec = settings.compression_type
    if codec == "none":
        return None
    try:
        return compress(codec, data, settings.compression_level)
    except Exception:
        log.exception(
            f"The %s codec failed on %d bytes; they are sent uncompressed. {PLEASE_REPORT}", codec, len(data)
        )
        return None
