"""RequestEncoder: what a codec that takes long is noted under, and needs while it runs."""

from __future__ import annotations

import asyncio
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from sidecar.producer.producer_batch import NO_DESCRIPTOR
from sidecar.producer.topic_settings import TopicRules
from sidecar.shm.descriptor_states import DescriptorEvent
from sidecar.shm.in_work import InWork, batch_word
from sidecar.worker.brokers import request_encoder
from sidecar.worker.brokers.request_encoder import RequestEncoder
from tests.configs import producer_config
from tests.patience import PATIENCE_S

from .harness import Harness


def test_a_batch_whose_descriptor_is_free_by_then_is_compressed_under_its_own_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It expired while the codec was busy with others: who finds the worker dead must not suspect another batch."""
    harness = Harness(tmp_path / "segment")
    batch = harness.batch(harness.accept(harness.client(), 1, 3))
    batch.queue.settings = TopicRules(producer_config(compression_type="gzip")).of("t")
    serial = harness.descriptors.serial(batch.descriptor)
    noted: list[int] = []
    in_work = InWork(harness.segment.slot(0))
    begin = in_work.begin_thread

    def begin_thread(word: int) -> int:
        noted.append(word)
        return begin(word)

    monkeypatch.setattr(in_work, "begin_thread", begin_thread)
    expired = threading.Event()

    def slow(codec: str, data: bytes, level: int | None) -> bytes:
        assert expired.wait(PATIENCE_S)
        return data[:1]

    monkeypatch.setattr(request_encoder, "compress", slow)

    async def compress() -> None:
        with ThreadPoolExecutor(1) as executor:
            loop = asyncio.get_running_loop()
            encoder = RequestEncoder(loop, executor, in_work=in_work, serial=harness.descriptors.serial)
            buffer = memoryview(bytearray(batch.size_bytes + 1000))
            plain, unsendable = encoder.copy_records([batch], buffer)
            assert not unsendable
            compressing = loop.create_task(encoder.compress(plain, buffer))
            harness.descriptors.step(DescriptorEvent.FREE, batch.descriptor)
            batch.descriptor = NO_DESCRIPTOR
            expired.set()
            ((encoded, _),) = await compressing
            assert encoded is batch

    asyncio.run(compress())
    assert noted == [batch_word(serial)]
    harness.close()


def test_a_codec_that_changes_under_way_is_named_as_it_was_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A reload while a codec runs: the header must name the codec of the bytes, not that of the next batch."""
    harness = Harness(tmp_path / "segment")
    batch = harness.batch(harness.accept(harness.client(), 1, 3))
    batch.queue.settings = TopicRules(producer_config(compression_type="gzip")).of("t")
    changed = threading.Event()

    def slow(codec: str, data: bytes, level: int | None) -> bytes:
        assert changed.wait(PATIENCE_S)
        return codec.encode()

    monkeypatch.setattr(request_encoder, "compress", slow)

    async def compress() -> bytes:
        with ThreadPoolExecutor(1) as executor:
            loop = asyncio.get_running_loop()
            encoder = RequestEncoder(
                loop, executor, in_work=InWork(harness.segment.slot(0)), serial=harness.descriptors.serial
            )
            plain, _ = encoder.copy_records([batch], memoryview(bytearray(4096)))
            task = loop.create_task(encoder.compress(plain, memoryview(bytearray(4096))))
            await asyncio.sleep(0)
            batch.queue.settings = TopicRules(producer_config(compression_type="zstd")).of("t")
            changed.set()
            ((_, encoded),) = await task
            return bytes(encoded)

    encoded = asyncio.run(compress())
    assert encoded.endswith(b"gzip")
    assert int.from_bytes(encoded[21:23], "big") & 7 == request_encoder.CODEC_ATTRIBUTES["gzip"]
    harness.close()
