"""CommitRecord: says which batch of a sink was committed last. It is in the transaction of the batch's rows."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Any, Final, NamedTuple

VERSION: Final = 1
KEY_CHARACTERS: Final = 16
RESTARTED: Final = "restart"
"""The run of a record that ``kafka-sidecar txn restart`` has written. Any query or job may come after it."""


class CommitRecord(NamedTuple):
    """``query`` is Spark's id of the checkpoint, empty for a batch job; ``run`` is of one start of it."""

    batch: int
    query: str
    run: str
    rows: int
    tasks: int
    topics: tuple[str, ...] = ()
    """Where its rows are."""
    offsets: Mapping[str, Any] | None = None
    """Where the batch ended in its sources, by Spark's own names; None where the checkpoint cannot be read."""

    def pack(self) -> bytes:
        fields: dict[str, Any] = {"version": VERSION, **self._asdict()}
        if self.offsets is None:
            del fields["offsets"]
        return json.dumps(fields, separators=(",", ":")).encode()


def unpack(value: bytes) -> CommitRecord:
    """Raises ValueError, in one sentence, for what is no record of this version."""
    try:
        fields = json.loads(value)
        version = fields["version"]
        if version == VERSION:
            return CommitRecord(
                int(fields["batch"]),
                str(fields["query"]),
                str(fields["run"]),
                int(fields["rows"]),
                int(fields["tasks"]),
                tuple(map(str, fields["topics"])),
                fields.get("offsets"),
            )
    except (ValueError, KeyError, TypeError) as error:
        raise ValueError(f"The last commit record cannot be read ({error}): {value[:200]!r}") from None
    raise ValueError(f"The last commit record has version {version!r:.20}: upgrade kafka-sidecar here.")


def key_of(query_or_job: str, sink: str) -> str:
    """The key of a sink's records, which is also in its transactional id."""
    told = json.dumps([query_or_job, sink]).encode()
    return hashlib.sha256(told).hexdigest()[:KEY_CHARACTERS]
