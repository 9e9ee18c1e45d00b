"""The hot path of this process: the compiled one where it was built, else the one in pure Python.

``KAFKA_SIDECAR_PURE_STUB=1`` picks pure Python; a host without a compiler and a build without the GIL have no
other. Both are seen by type checkers as ``pure.py``.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any, Final

from client_stub.pure import OnDelivery


def _load() -> Any:
    if os.environ.get("KAFKA_SIDECAR_PURE_STUB") == "1":
        return None
    try:
        from client_stub import _native
    except ImportError:
        return None
    return _native


native: Final = _load()
"""``client_stub._native``, or None."""

if TYPE_CHECKING or native is None:
    from client_stub.pure import (
        Delivery,
        Fate,
        OpenStream,
        OutboxCore,
        PartCore,
        RecordPacker,
        SubmissionCore,
        hush,
        mask_of_indexes,
        plain_pairs,
        receive,
        ring,
        run_callbacks,
    )
else:
    Delivery = native.Delivery
    Fate = native.Fate
    OpenStream = native.OpenStream
    OutboxCore = native.OutboxCore
    PartCore = native.PartCore
    RecordPacker = native.RecordPacker
    SubmissionCore = native.SubmissionCore
    hush = native.hush
    mask_of_indexes = native.mask_of_indexes
    plain_pairs = native.plain_pairs
    receive = native.receive
    ring = native.ring
    run_callbacks = native.run_callbacks

__all__ = [
    "Delivery",
    "Fate",
    "OnDelivery",
    "OpenStream",
    "OutboxCore",
    "PartCore",
    "RecordPacker",
    "SubmissionCore",
    "hush",
    "mask_of_indexes",
    "native",
    "plain_pairs",
    "receive",
    "ring",
    "run_callbacks",
]
