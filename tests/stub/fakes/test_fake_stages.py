"""Goal: an application that stages in one process and includes in another can test both with fakes."""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from client_stub.errors import InvalidRecord, TransactionError, TransactionTimeout
from client_stub.testing import FakeAsyncProducer, FakeProducer


def import_file(name: str) -> bytes:
    """An application's function, as in docs/transactions.md."""
    with FakeProducer().stage("import", number=len(name)) as stage:
        stage.send("lines", name.encode())
        stage.send_many("lines", [(b"k", b"1"), (b"k", b"2")])
        return stage.seal()


def values(producer: FakeProducer | FakeAsyncProducer) -> list[Any]:
    return [record.value for record in producer.committed]


def test_pool_fills_one_transaction() -> None:
    producer = FakeProducer(transactional_id="import")
    with producer.transaction(), ThreadPoolExecutor(2) as pool:
        inclusion = producer.include(pool.map(import_file, ["a", "bb"]))
        producer.send("done", b"2 files")
        assert values(producer) == []
    assert values(producer) == [b"a", b"1", b"2", b"bb", b"1", b"2", b"2 files"]
    assert (inclusion.rows, inclusion.bytes) == (6, 11)
    assert inclusion.partitions == {("lines", 0): (0, 5, 6)}


def test_staged_shows_what_waits() -> None:
    stager, producer = FakeProducer(), FakeProducer(transactional_id="import")
    with stager.stage("import", 1) as stage:
        stage.send("lines", b"x")
        token = stage.seal()
    assert [record.value for record in stager.staged[token]] == [b"x"]
    assert stager.committed == []
    with producer.transaction():
        producer.include([token])
    assert stager.staged == {}


def test_token_is_used_once_and_by_its_id_only() -> None:
    def refusal(producer: FakeProducer, tokens: list[bytes]) -> str:
        producer.begin_transaction()
        with pytest.raises(TransactionError) as caught:
            producer.include(tokens)
        producer.abort_transaction()
        return str(caught.value)

    producer, other = FakeProducer(transactional_id="import"), FakeProducer(transactional_id="export")
    for each in (producer, other):
        each.init_transactions()
    token = import_file("a")
    assert "for the transactional id import" in refusal(other, [token])
    assert "given twice" in refusal(producer, [token, token])
    with producer.transaction():
        producer.include([token])
    assert "Token 1 of 1 is used" in refusal(producer, [token])
    assert "unknown" in refusal(producer, [b"what"])
    assert values(producer) == [b"a", b"1", b"2"]


def test_dropped_stages_are_counted() -> None:
    producer = FakeProducer(transactional_id="import")
    tokens = [import_file("x" * number) for number in (1, 2, 3)]
    assert producer.drop_stages(tokens[2:]) == 1
    assert producer.drop_stages(up_to=2) == 2
    assert producer.drop_stages(tokens) == 0


def test_aborted_block_leaves_nothing() -> None:
    stager = FakeProducer()
    with pytest.raises(ZeroDivisionError), stager.stage("import", 1) as stage:
        stage.send("lines", b"x")
        _ = 1 // 0
    assert stager.staged == {}


def test_record_that_fails_in_a_stage_and_in_the_commit() -> None:
    def refuse(record: Any) -> InvalidRecord | None:
        return InvalidRecord("no") if record.value == b"bad" else None

    stager = FakeProducer(fail_with=refuse)
    stage = stager.stage("import", 1)
    stage.send("lines", b"bad")
    with pytest.raises(TransactionError, match="Stage 1 of import is lost: no"):
        stage.seal()
    stager.fail_with = None
    with stager.stage("import", 1) as stage:
        stage.send("lines", b"bad")
        token = stage.seal()
    producer = FakeProducer(transactional_id="import", fail_with=refuse)
    with pytest.raises(TransactionError, match="no"), producer.transaction():
        producer.include([token])
    assert values(producer) == []


def test_seal_waits_while_outcomes_are_held() -> None:
    stager = FakeProducer()
    stager.hold()
    stage = stager.stage("import", 1)
    stage.send("lines", b"x")
    with pytest.raises(TransactionTimeout):
        stage.seal(0)
    stager.release()
    assert [record.value for record in stager.staged[stage.seal(0)]] == [b"x"]


def test_async_producer() -> None:
    async def run() -> None:
        stager, producer = FakeAsyncProducer(), FakeAsyncProducer(transactional_id="async-import")

        async def work(number: int) -> bytes:
            async with stager.stage("async-import", number) as stage:
                await stage.send("lines", b"%d" % number)
                await stage.send_many("lines", [(None, b"x")])
                return await stage.seal()

        async with producer.transaction():
            inclusion = await producer.include(await asyncio.gather(*map(work, range(3))))
        assert inclusion.rows == 6
        assert values(producer) == [b"0", b"x", b"1", b"x", b"2", b"x"]
        assert await producer.drop_stages(up_to=5) == 0

    asyncio.run(run())
