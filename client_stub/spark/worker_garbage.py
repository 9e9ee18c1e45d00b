"""Spares the garbage collector of Spark's Python workers the objects that they keep anyway.

The data source calls it in the processes that Spark forks for tasks and for plans.
"""

from __future__ import annotations

import gc
import sys
from typing import Final

_FORKED_BY: Final = "pyspark.daemon"
_has_frozen = False


def freeze_modules() -> None:
    """Once in a process, when it has loaded what it needs: exempt the objects of now from later collections.

    Spark's worker collects all garbage after each task, and before it takes the next one. That takes 10 to 15 ms, most
    of it for the modules of pyspark, pyarrow and this package. Nothing is done in a process that is not Spark's.
    """
    global _has_frozen
    if not _has_frozen and _is_worker():
        _has_frozen = True
        gc.collect()
        gc.freeze()


def _is_worker() -> bool:
    spec = getattr(sys.modules.get("__main__"), "__spec__", None)
    return spec is not None and spec.name == _FORKED_BY
