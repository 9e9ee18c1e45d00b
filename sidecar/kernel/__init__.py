"""The hot path: journal chains, the index and encode walks, words, outcome bytes, checksums, atomics.

A compiled extension does the work. Its twin in plain Python is the tests' oracle, and has the same API. The kernel gets
bytes and numbers, and knows no other package of the project.
"""

from __future__ import annotations

try:
    from sidecar.kernel._kernel import *  # noqa: F403
except ImportError as error:
    from sidecar.kernel.missing import why_not

    raise ImportError(why_not(error)) from error
