"""The hot path: journal chains, the index and encode walks, words, outcome bytes, checksums, atomics.

A compiled extension does the work. ``reference.py`` is its twin in pure Python and the tests' oracle. The kernel gets
bytes and numbers, and knows no other package of the project. Its API is named in ``reference.__all__``. The
environment variable ``KAFKA_SIDECAR_PURE_KERNEL=1`` selects the twin (slow, for debugging only).
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

if TYPE_CHECKING or os.environ.get("KAFKA_SIDECAR_PURE_KERNEL") != "1":
    try:
        from sidecar.kernel._kernel import *  # noqa: F403
    except ImportError as error:
        from sidecar.kernel.missing import why_not

        raise ImportError(why_not(error)) from error
else:
    from sidecar.kernel.reference import *  # noqa: F403
