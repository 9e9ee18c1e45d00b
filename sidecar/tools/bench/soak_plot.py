"""The picture of a soak: memory, descriptors, threads, tables and latency over its time. Needs matplotlib ([dev])."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from sidecar.tools.bench.plots import pyplot, save

if TYPE_CHECKING:
    from matplotlib.axes import Axes

MINUTE_S: Final = 60.0
EVENTS: Final = (("broker", "#c0392b"), ("worker", "#e6a23c"))
"""The beginning of a step's name → the colour of its line."""
TABLES: Final = ("pages", "client_rows", "chain_rows", "batch_descriptors")


def plot_soak(report: Mapping[str, Any], path: Path) -> None:
    """``report``: the JSON of ``kafka-sidecar chaos --soak``."""
    plt = pyplot()
    samples = report["samples"]
    figure, axes = plt.subplots(3, 2, figsize=(13, 10), sharex=True)
    for axis, name, label in (
        (axes[0][0], "rss_mb", "anonymous memory, MB"),
        (axes[1][0], "fds", "file descriptors"),
        (axes[2][0], "threads", "threads"),
    ):
        _by_process(axis, samples, name)
        axis.set_ylabel(label)
    minutes = [each["at_s"] / MINUTE_S for each in samples]
    _latency(axes[0][1], samples)
    for name in TABLES:
        axes[1][1].plot(minutes, [each["tables"][name] for each in samples], label=name.replace("_", " "))
    axes[1][1].set_yscale("symlog")
    axes[1][1].set_ylabel("in use in the segment")
    axes[1][1].legend(fontsize=8)
    axes[2][1].plot(minutes, [each["sent"] / 1e6 for each in samples])
    axes[2][1].set_ylabel("million records sent")
    for axis in axes.flat:
        axis.grid(alpha=0.3)
        for begin, colour in EVENTS:
            for at_s, what in report["events"]:
                if what.startswith(begin):
                    axis.axvline(at_s / MINUTE_S, color=colour, alpha=0.25, linewidth=1)
    for axis in axes[-1]:
        axis.set_xlabel("minutes; lines: a broker restarts (red), a worker is killed (yellow)")
    records = report["records"]["sent"]
    figure.suptitle(f"{records / 1e6:.1f} million records in {report['seconds'] / MINUTE_S:.0f} minutes")
    save(plt, figure, path)


def _by_process(axis: Axes, samples: list[dict[str, Any]], name: str) -> None:
    """One line per role, with a gap where its process was replaced."""
    lines: dict[str, tuple[list[float], list[float]]] = defaultdict(lambda: ([], []))
    last: dict[str, int] = {}
    for sample in samples:
        for process in sample["processes"]:
            role = process["role"]
            x, y = lines[role]
            if last.setdefault(role, process["pid"]) != process["pid"]:
                x.append(sample["at_s"] / MINUTE_S)
                y.append(float("nan"))
                last[role] = process["pid"]
            x.append(sample["at_s"] / MINUTE_S)
            y.append(process[name])
    for role, (x, y) in sorted(lines.items()):
        axis.plot(x, y, label=role, marker="." if len(x) < 3 else None)
    axis.set_ylim(bottom=0)
    axis.legend(fontsize=8)


def _latency(axis: Axes, samples: list[dict[str, Any]]) -> None:
    for name, label in (("p50_ms", "p50"), ("p99_ms", "p99")):
        calm = [each for each in samples if each["is_calm"] and each[name] is not None]
        axis.plot(
            [each["at_s"] / MINUTE_S for each in calm],
            [each[name] for each in calm],
            ".-",
            label=f"{label}, calm",
        )
    worst = [each for each in samples if each["p99_ms"] is not None]
    axis.plot(
        [each["at_s"] / MINUTE_S for each in worst],
        [each["p99_ms"] for each in worst],
        color="#b0b0b0",
        linewidth=0.7,
        label="p99, all",
    )
    axis.set_yscale("log")
    axis.set_ylabel("latency of the probe, ms")
    axis.legend(fontsize=8)
