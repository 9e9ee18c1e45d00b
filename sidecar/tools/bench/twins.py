"""What a program pays that takes the twin of its client: the same loop, first with the original."""

from __future__ import annotations

from typing import Final

from sidecar.tools.bench.bed import Bed
from sidecar.tools.bench.measurement import Results
from sidecar.tools.bench.throughput import measure_throughput

SECTION: Final = "twins"
CPU: Final = "caller CPU a record"
OURS, THEIRS = "sidecar-twin", "confluent-polled"


def measure_twins(bed: Bed, results: Results) -> None:
    measure_throughput(bed, results, section=SECTION, kinds=(OURS, THEIRS, "sidecar-result"))
    results.compare(
        "caller CPU a record, confluent's twin against confluent-kafka, produce() + poll(0) with callbacks",
        (SECTION, CPU, OURS),
        (SECTION, CPU, THEIRS),
        at_most=0.6,
    )
