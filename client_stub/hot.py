"""The hot path of this process: the compiled one if it was built, otherwise the one in pure Python.

``KAFKA_SIDECAR_PURE_STUB=1`` selects pure Python, which is also the only one without a compiler or without the GIL.
Type checkers see both as ``pure.py``.
"""

from __future__ import annotations

import os
from typing import Any, Final

from client_stub import pure
from client_stub.pure import *  # noqa: F403
from client_stub.pure_fate import OnDelivery as OnDelivery  # noqa: PLC0414


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

if native is not None:
    globals().update({name: getattr(native, name) for name in pure.__all__})
