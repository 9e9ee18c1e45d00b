"""Python reads this at the start of each process that has this folder on its PYTHONPATH; only a worker counts."""

from __future__ import annotations

import os
import sys

if "SIDECAR_BENCH_CALLS" in os.environ and "sidecar.worker" in sys.orig_argv:
    from sidecar.bench.call_counter import serve

    serve(os.environ["SIDECAR_BENCH_CALLS"])
