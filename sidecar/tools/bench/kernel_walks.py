"""The kernel's walks in nanoseconds per record, from ``python -m sidecar.tools.bench.kernel_bench``."""

from __future__ import annotations

import subprocess

from sidecar.common.python_child import python_command
from sidecar.tools.bench.measurement import Results
from sidecar.tools.demo.steps import Steps

SECTION = "kernel"


def measure_kernel(steps: Steps, results: Results) -> None:
    """Show its table, and keep the warm and cold rows as measurements."""
    with steps.step("The kernel, nanoseconds a record"):
        done = subprocess.run(
            python_command("sidecar.tools.bench.kernel_bench"), capture_output=True, text=True, check=False
        )
        if done.returncode != 0:
            raise RuntimeError(f"the kernel's bench failed: {done.stderr.strip()[-2000:]}")
        steps.console.print(done.stdout, highlight=False, soft_wrap=True)
    header, *rows = done.stdout.splitlines()
    walks = header.split()[3:]
    for row in rows:
        name, numbers = row.partition("  ")[0], row.split()[-len(walks) :]
        if name.startswith(("warm", "cold")):
            for walk, number in zip(walks, numbers, strict=True):
                results.add(SECTION, f"{walk}, {name}", "sidecar", "ns", [float(number.replace(",", ""))])
