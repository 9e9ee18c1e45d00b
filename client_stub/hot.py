"""The hot path of this process: the compiled one where it was built, else the one in pure Python.

``KAFKA_SIDECAR_PURE_STUB=1`` picks pure Python; a host without a compiler and a build without the GIL have no
other. Both are seen by type checkers as ``pure.py``.
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
