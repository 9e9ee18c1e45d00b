"""Pictures of the results: rates side by side, latency under load, growth with scale. Needs matplotlib ([dev])."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from sidecar.bench.measurement import Measurement, Results

if TYPE_CHECKING:
    from matplotlib.axes import Axes

OURS_COLOUR = "#1b6ca8"
THEIRS_COLOUR = "#b0b0b0"


def plot_comparison(results: Results, path: Path) -> None:
    """Acknowledged records a second and caller CPU of one caller, one bar a side, spread as a whisker."""
    plt = _pyplot()
    figure, axes = plt.subplots(1, 2, figsize=(11, 4.5))
    for axis, what, label in (
        (axes[0], "acked records/s", "acknowledged records a second"),
        (axes[1], "caller CPU a record", "CPU of the calling process, µs a record"),
    ):
        _bars(axis, [e for e in results.measurements if e.section == "one caller" and e.what == what], label)
    figure.suptitle("One calling process, 100-byte values, acks=all, idempotent: medians, with the spread")
    figure.tight_layout()
    figure.savefig(path, dpi=110)
    plt.close(figure)


def plot_scale(results: Results, path: Path) -> None:
    """Four curves against a broker that answers at once: rate, and CPU a record of daemon and caller."""
    plt = _pyplot()
    sections = list(
        dict.fromkeys(e.section for e in results.measurements if e.section.startswith("scale by "))
    )
    figure, axes = plt.subplots(2, len(sections), figsize=(4 * len(sections), 7), squeeze=False)
    for column, section in enumerate(sections):
        found = [each for each in results.measurements if each.section == section]
        for prefix, colour in (("daemon CPU", OURS_COLOUR), ("caller CPU", THEIRS_COLOUR)):
            _curve(axes[1][column], [e for e in found if e.what.startswith(prefix)], prefix, colour)
        size = section.endswith("bytes")
        prefix = "MB/s" if size else "acked records/s"
        _curve(axes[0][column], [e for e in found if e.what.startswith(prefix)], prefix, OURS_COLOUR)
        for axis in (axes[0][column], axes[1][column]):
            axis.set_xlabel(section.removeprefix("scale by "))
            axis.set_xscale("log" if section != "scale by workers" else "linear")
            axis.legend()
            axis.grid(alpha=0.3)
        axes[1][column].set_ylabel("µs a record")
        axes[1][column].set_yscale("log" if size else "linear")
        if not size:
            axes[1][column].set_ylim(bottom=0)
        axes[0][column].set_ylim(bottom=0)
    figure.suptitle("Against a broker that answers at once and keeps nothing")
    figure.tight_layout()
    figure.savefig(path, dpi=110)
    plt.close(figure)


def plot_latency(results: Results, path: Path) -> None:
    """p50, p99 and p99.9 under open load, both sides."""
    plt = _pyplot()
    sections = list(
        dict.fromkeys(e.section for e in results.measurements if e.section.startswith("open loop"))
    )
    figure, axes = plt.subplots(
        1, max(1, len(sections)), figsize=(4 * max(1, len(sections)), 4.2), squeeze=False
    )
    for axis, section in zip(axes[0], sections, strict=False):
        found = [each for each in results.measurements if each.section == section]
        names = list(dict.fromkeys(each.what for each in found))
        for shift, side, colour in ((-0.2, "sidecar", OURS_COLOUR), (0.2, "confluent", THEIRS_COLOUR)):
            medians = [next(e.median for e in found if e.what == n and e.side == side) for n in names]
            axis.bar([i + shift for i in range(len(names))], medians, 0.38, color=colour, label=side)
        axis.set_xticks(range(len(names)), names)
        axis.set_yscale("log")
        axis.set_title(section.removeprefix("open loop, "))
        axis.grid(alpha=0.3, axis="y")
    axes[0][0].set_ylabel("ms from due to acknowledged")
    axes[0][0].legend()
    figure.tight_layout()
    figure.savefig(path, dpi=110)
    plt.close(figure)


def _bars(axis: Axes, found: list[Measurement], label: str) -> None:
    found = sorted(found, key=lambda each: each.median)
    medians = [each.median for each in found]
    spread = [
        [each.median - min(each.values) for each in found],
        [max(each.values) - each.median for each in found],
    ]
    colours = [OURS_COLOUR if each.side.startswith("sidecar") else THEIRS_COLOUR for each in found]
    axis.barh([each.side for each in found], medians, xerr=spread, color=colours, capsize=3)
    axis.set_xlabel(label)
    axis.grid(alpha=0.3, axis="x")
    axis.locator_params(axis="x", nbins=6)
    axis.xaxis.set_major_formatter(lambda value, _: _rounded(value))


def _rounded(value: float) -> str:
    """1.5 M, 250 k, 30: as short as an axis wants it."""
    if value >= 1e6:
        return f"{value / 1e6:g} M"
    return f"{value / 1e3:g} k" if value >= 1e3 else f"{value:g}"


def _curve(axis: Axes, found: list[Measurement], label: str, colour: str) -> None:
    points = sorted((each for each in found if each.at is not None), key=lambda each: each.at or 0.0)
    x = [each.at or 0.0 for each in points]
    axis.plot(x, [each.median for each in points], "o-", color=colour, label=label)
    axis.fill_between(
        x,
        [min(each.values) for each in points],
        [max(each.values) for each in points],
        color=colour,
        alpha=0.2,
    )


def _pyplot() -> Any:
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    return pyplot
