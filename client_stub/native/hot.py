"""The hot path of this process: the compiled one if it was built, otherwise the one in pure Python.

``KAFKA_SIDECAR_PURE_STUB=1`` selects pure Python, which is also the only one without a compiler or without the GIL.
Type checkers see both as ``pure.py``.
"""

from __future__ import annotations

import os
from typing import Any, Final, TypeVar

from client_stub.native import pure
from client_stub.native.pure import *  # noqa: F403
from client_stub.native.pure_fate import OnDelivery as OnDelivery  # noqa: PLC0414

_Kind = TypeVar("_Kind", bound=type)


def _load() -> Any:
    if os.environ.get("KAFKA_SIDECAR_PURE_STUB") == "1":
        return None
    try:
        from client_stub.native import _native
    except ImportError:
        return None
    return _native


native: Final = _load()
"""``client_stub.native._native``, or None."""


def refuses_await(kind: _Kind) -> _Kind:
    """Give ``await`` of a future of Producer our words. A decorator; without the compiled module Python has its own
    words.
    """
    return kind if native is None else native.refuses_await(kind)


if native is not None:
    globals().update({name: getattr(native, name) for name in pure.__all__})
