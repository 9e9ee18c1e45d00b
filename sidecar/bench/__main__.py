"""``python -m sidecar.bench``: the command ``kafka-sidecar bench`` without an installed console script."""

from __future__ import annotations

from sidecar.cli.bench import bench

if __name__ == "__main__":
    bench()
