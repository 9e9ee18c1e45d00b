"""aiokafka: asyncio in the caller's process."""

from __future__ import annotations

import asyncio
from typing import Any

from sidecar.tools.bench.peers.peer import FLUSH_S, WARM_S, Peer
from sidecar.tools.bench.workload import Workload


class Aiokafka(Peer):
    """``await send()`` for each record, and all their futures awaited at the end; under uvloop."""

    def __init__(self, bootstrap_servers: str) -> None:
        import uvloop

        self._runner = asyncio.Runner(loop_factory=uvloop.new_event_loop)
        self._producer: Any = self._runner.run(self._start(bootstrap_servers))

    async def _start(self, bootstrap_servers: str) -> Any:
        from aiokafka import AIOKafkaProducer

        producer = AIOKafkaProducer(
            bootstrap_servers=bootstrap_servers, acks="all", enable_idempotence=True, linger_ms=5
        )
        await producer.start()
        return producer

    def warm(self, topic: str) -> None:
        self._runner.run(asyncio.wait_for(self._producer.send_and_wait(topic, b"warm"), WARM_S))

    def send_all(self, workload: Workload) -> int:
        return self._runner.run(asyncio.wait_for(self._send_all(workload), FLUSH_S))

    async def _send_all(self, workload: Workload) -> int:
        records, topic, send = workload.make(), workload.topic, self._producer.send
        count = len(records)
        futures = []
        for number in range(workload.records):
            key, value = records[number % count]
            futures.append(await send(topic, value=value, key=key))
        await self._producer.flush()
        return len(await asyncio.gather(*futures))

    def close(self) -> None:
        self._runner.run(self._producer.stop())
        self._runner.close()
