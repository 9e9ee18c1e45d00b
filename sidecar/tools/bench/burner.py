"""A neighbour that only takes CPU: ``python -m sidecar.tools.bench.burner SHARE``, until it is killed.

It works in pieces of 4 ms and sleeps between them, so that it takes SHARE of one core on average.
"""

from __future__ import annotations

import sys
import time

PIECE_S = 0.004


def main(share: float) -> None:
    print("burning", flush=True)
    began_s, began_cpu_s = time.monotonic(), time.thread_time()
    while True:
        until_s = time.thread_time() + PIECE_S
        while time.thread_time() < until_s:
            pass
        early_s = (time.thread_time() - began_cpu_s) / share - (time.monotonic() - began_s)
        if early_s > 0:
            time.sleep(early_s)


if __name__ == "__main__":
    main(float(sys.argv[1]))
