"""Goal: what more cores would give is computed from measured stages, and is called a model wherever it is shown."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from sidecar.tools.bench.bed import daemon_before, null_broker
from sidecar.tools.bench.measurement import Results, short
from sidecar.tools.bench.report import to_markdown
from sidecar.tools.bench.scale_model import (
    CALLER,
    CONTROLLER,
    LOOP,
    MODEL,
    OTHER_THREADS,
    STAGES,
    add_model,
    measure_stages,
    model,
)
from sidecar.tools.bench.workload import Workload
from sidecar.tools.testing.process_stats import cpu_seconds, main_thread_cpu_seconds


def test_the_loop_bounds_the_rate_and_all_stages_keep_cores_busy() -> None:
    costs_us = {CALLER: 0.2, OTHER_THREADS: 0.05, LOOP: 0.25, CONTROLLER: 0.0}
    assert model(costs_us, 1) == pytest.approx((4e6, 2.0))
    assert model(costs_us, 8) == pytest.approx((32e6, 16.0))


def test_nothing_is_modelled_that_was_not_measured() -> None:
    results = Results()
    results.add(STAGES, LOOP, "sidecar", "µs", [0.25])
    add_model(results)
    assert results.find(MODEL, "records/s at most at 1", "sidecar") is None
    assert not results.notes


@pytest.mark.process
@pytest.mark.alone
def test_stages_of_a_real_worker_make_a_table_that_says_what_it_is() -> None:
    results = Results()
    with null_broker({"t": 6}) as address, daemon_before(address, {"daemon.workers": 1}) as site:
        measure_stages(site, "sidecar-send-many", Workload("t", 20_000), results)
    add_model(results)
    loop = results.find(STAGES, LOOP, "sidecar")
    assert loop is not None
    assert loop.median > 0
    text = to_markdown(results)
    assert f"**{MODEL}**" in text
    assert f"| 32 | {short(32e6 / loop.median)} |" in text
    assert "is a model, not a measurement" in text


def test_cpu_is_that_of_the_process_and_its_first_thread() -> None:
    before, first = cpu_seconds([os.getpid()]), main_thread_cpu_seconds(os.getpid())
    start = time.process_time()
    while time.process_time() - start < 0.05:
        pass
    assert cpu_seconds([os.getpid()]) - before >= 0.05
    assert main_thread_cpu_seconds(os.getpid()) - first > 0


@pytest.mark.slow
def test_a_curve_is_a_row_for_each_point_in_plain_numbers(tmp_path: Path) -> None:
    from sidecar.tools.bench.plots import plot_scale

    results = Results()
    for point, rates in ((1, [10.0, 30.0, 20.0]), (1_000_000, [5.0])):
        section = "scale by record bytes"
        results.add(section, f"acked records/s at {point:,}", "ours", "1/s", rates, at=point)
        for what, unit in (("MB/s", "MB/s"), ("daemon CPU a record", "µs"), ("caller CPU a record", "µs")):
            results.add(section, f"{what} at {point:,}", "ours", unit, [2.0], at=point)
    rows = to_markdown(results).splitlines()
    assert (
        "| record bytes | acked records/s | MB/s | daemon CPU a record, µs | caller CPU a record, µs |"
        in rows
    )
    assert "| 1 | 20 (10-30) | 2 | 2 | 2 |" in rows
    assert "| 1,000,000 | 5 | 2 | 2 | 2 |" in rows
    plot_scale(results, tmp_path / "scale.png")
    assert (tmp_path / "scale.png").read_bytes().startswith(b"\x89PNG")
