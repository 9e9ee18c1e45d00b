"""``python -m sidecar.bench [--records N] [--rounds N] [--json FILE]``."""

from __future__ import annotations

import argparse
from pathlib import Path

from sidecar.bench.main import run_bench

if __name__ == "__main__":
    parser = argparse.ArgumentParser(prog="python -m sidecar.bench")
    parser.add_argument("--records", type=int, default=1_000_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    raise SystemExit(run_bench(records=options.records, rounds=options.rounds, json_path=options.json))
