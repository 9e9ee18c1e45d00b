"""RequestEncoder: what a codec that takes long is noted under, and needs while it runs."""

from __future__ import annotations

import asyncio
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from sidecar.producer.producer_batch import NO_DESCRIPTOR
from sidecar.producer.topic_settings import TopicRules
from sidecar.shm.in_work import InWork, batch_word
from sidecar.worker.brokers import request_encoder
from sidecar.worker.brokers.request_encoder import RequestEncoder
from tests.configs import producer_config

from .scene import Scene


def test_a_batch_whose_descriptor_is_free_by_then_is_compressed_under_its_own_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It expired while the codec was busy with others: who finds the worker dead must not suspect another batch."""
    scene = Scene(tmp_path / "segment")
    batch = scene.batch(scene.accept(scene.client(), 1, 3))
    batch.queue.settings = TopicRules(producer_config(compression_type="gzip")).of("t")
    serial = scene.descriptors.serial(batch.descriptor)
    noted: list[int] = []
    in_work = InWork(scene.segment.slot(0))
    begin = in_work.begin_beside

    def begin_beside(word: int) -> int:
        noted.append(word)
        return begin(word)

    monkeypatch.setattr(in_work, "begin_beside", begin_beside)
    expired = threading.Event()

    def slow(codec: str, data: bytes, level: int | None) -> bytes:
        assert expired.wait(10)
        return data[:1]

    monkeypatch.setattr(request_encoder, "compress", slow)

    async def compress() -> None:
        with ThreadPoolExecutor(1) as executor:
            loop = asyncio.get_running_loop()
            encoder = RequestEncoder(loop, executor, in_work=in_work, serial=scene.descriptors.serial)
            buffer = memoryview(bytearray(batch.size_bytes + 1000))
            plain, unsendable = encoder.copy_records([batch], buffer)
            assert not unsendable
            compressing = loop.create_task(encoder.compress(plain, buffer))
            scene.descriptors.free(batch.descriptor)
            batch.descriptor = NO_DESCRIPTOR
            expired.set()
            ((encoded, _),) = await compressing
            assert encoded is batch

    asyncio.run(compress())
    assert noted == [batch_word(serial)]
    scene.close()
