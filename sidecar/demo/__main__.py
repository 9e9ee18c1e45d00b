"""``python -m sidecar.demo``: the same as ``kafka-sidecar demo``."""

from __future__ import annotations

import argparse

from sidecar.demo.main import run_demo

if __name__ == "__main__":
    parser = argparse.ArgumentParser(prog="python -m sidecar.demo")
    parser.add_argument("--bootstrap-servers", metavar="HOST:PORT,...")
    parser.add_argument("--mock", action="store_true")
    parser.add_argument("--keep", action="store_true")
    options = parser.parse_args()
    raise SystemExit(
        run_demo(bootstrap_servers=options.bootstrap_servers, mock=options.mock, keep=options.keep)
    )
