"""The prefix of a record in Confluent's format."""

from __future__ import annotations

import io

import pytest

from client_stub.pipeline.registry import prefix


@pytest.mark.parametrize(
    ("schema_id", "indexes", "expected"),
    [
        (1, None, "0000000001"),
        (0x7FFFFFFF, None, "007fffffff"),
        (7, [0], "000000000700"),
        (7, [1], "00000000070202"),
        (7, [63], "0000000007027e"),
        (7, [64], "0000000007028001"),
        (7, [0, 2], "0000000007040004"),
    ],
)
def test_prefix_of_a_record(schema_id: int, indexes: list[int] | None, expected: str) -> None:
    assert prefix(schema_id, indexes).hex() == expected


def test_prefix_is_that_of_confluents_client() -> None:
    """By its own reader of the id and of the path to a message."""
    serde = pytest.importorskip("confluent_kafka.schema_registry.serde")
    for indexes in ([0], [1], [0, 3], [200, 0, 1]):
        schema_id = serde.SchemaId("PROTOBUF")
        rest = schema_id.from_bytes(io.BytesIO(prefix(70_000, indexes) + b"rest"))
        assert (schema_id.id, schema_id.message_indexes, rest.read()) == (70_000, indexes, b"rest")
