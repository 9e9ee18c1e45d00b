"""Submissions as the worker hands them to the spool."""

from __future__ import annotations

from hashlib import blake2b
from typing import Any

import msgpack

from client_stub.contract.wire import LocalCode, Persistence
from sidecar.deadletter.letters import Undelivered


def group(
    records: list[Any], *, seq: int = 1, indexes: list[int] | None = None, **fields: Any
) -> Undelivered:
    payload = b"".join(msgpack.packb(record) for record in records)
    given: dict[str, Any] = {
        "name": blake2b(b"%d" % seq, digest_size=16).digest(),
        "sender": f"{'ab' * 20}/3/{seq}",
        "client_name": "billing",
        "pid": 4711,
        "topic": "orders",
        "partition": None,
        "base_timestamp_ms": 1_700_000_000_000,
        "payload": payload,
        "numbers": range(len(records)),
        "indexes": list(range(len(records))) if indexes is None else indexes,
        "code": int(LocalCode.EXPIRED),
        "text": "too late",
        "persistence": Persistence.NOT_PERSISTED,
    }
    return Undelivered(**(given | fields))
