"""Pictures of the results: rates side by side, latency under load, growth with scale. Needs matplotlib ([dev])."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from sidecar.tools.bench.measurement import Measurement, Results, short
from sidecar.tools.bench.whole_file import whole_file

if TYPE_CHECKING:
    from matplotlib.axes import Axes

OURS_COLOUR: Final = "#1b6ca8"
THEIRS_COLOUR: Final = "#b0b0b0"
OPEN_LOOP: Final = "open loop, "
SIDES: Final = ((-0.2, "sidecar", OURS_COLOUR), (0.2, "confluent", THEIRS_COLOUR))
ROOM: Final = 1.18
"""How far an axis extends beyond its longest bar, for the number at the bar's end."""


def plot_comparison(results: Results, path: Path) -> None:
    """Acknowledged records per second and caller CPU of one caller: one bar per side, with the spread as a whisker."""
    plt = pyplot()
    figure, axes = plt.subplots(1, 2, figsize=(12, 4.8))
    for axis, what, label in (
        (axes[0], "acked records/s", "acknowledged records a second"),
        (axes[1], "caller CPU a record", "CPU of the calling process, µs a record"),
    ):
        _bars(axis, [e for e in results.measurements if e.section == "one caller" and e.what == what], label)
    figure.suptitle("One calling process, 100-byte values, acks=all, idempotent: medians, with the spread")
    save(plt, figure, path)


def plot_scale(results: Results, path: Path) -> None:
    """Four curves against a broker that answers at once: rate, and CPU a record of daemon and caller."""
    plt = pyplot()
    sections = _sections(results, "scale by ")
    figure, axes = plt.subplots(2, len(sections), figsize=(4.2 * len(sections), 7), squeeze=False)
    for column, section in enumerate(sections):
        found = [each for each in results.measurements if each.section == section]
        size = section.endswith("bytes")
        rate = "MB/s" if size else "acked records/s"
        top, bottom = axes[0][column], axes[1][column]
        _curve(top, [each for each in found if each.curve == rate], rate, OURS_COLOUR)
        for curve, colour in (("daemon CPU a record", OURS_COLOUR), ("caller CPU a record", THEIRS_COLOUR)):
            _curve(bottom, [each for each in found if each.curve == curve], curve, colour)
        for axis in (top, bottom):
            _points(axis, sorted({each.at for each in found if each.at is not None}))
            axis.set_xlabel(section.removeprefix("scale by "))
            axis.grid(alpha=0.3)
        top.set_title(rate)
        bottom.set_title("µs a record")
        if size:
            bottom.set_yscale("log")
        for axis in (top,) if size else (top, bottom):
            axis.set_ylim(0, axis.get_ylim()[1] * 1.05)
        for axis in (top, bottom):
            axis.yaxis.set_major_formatter(lambda value, _: _rounded(value))
    handles, labels = axes[1][0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="lower center", ncols=len(labels), frameon=False)
    figure.suptitle(
        "Against a broker that answers at once and keeps nothing: send_many(), medians, with the spread"
    )
    save(plt, figure, path, bottom=0.04)


def plot_latency(results: Results, path: Path) -> None:
    """p50, p99 and p99.9 under open load, both sides, on one axis of time."""
    plt = pyplot()
    sections = _sections(results, OPEN_LOOP)
    figure, axes = plt.subplots(
        1, len(sections), figsize=(3.6 * len(sections) + 0.6, 4.6), squeeze=False, sharey=True
    )
    for axis, section in zip(axes[0], sections, strict=True):
        found = [
            each for each in results.measurements if each.section == section and each.what.startswith("p")
        ]
        names = list(dict.fromkeys(each.what for each in found))
        for shift, side, colour in SIDES:
            ours = [each for each in found if each.side == side]
            places = [names.index(each.what) + shift for each in ours]
            medians = [each.median for each in ours]
            bars = axis.bar(places, medians, 0.38, yerr=_spread(ours), color=colour, label=side, capsize=3)
            axis.bar_label(bars, [short(value) for value in medians], padding=2, fontsize=8)
        axis.set_xticks(range(len(names)), names)
        axis.set_yscale("log")
        axis.set_title(section.removeprefix(OPEN_LOOP).replace("%", " % load"))
        axis.grid(alpha=0.3, axis="y")
    first = axes[0][0]
    low, high = first.get_ylim()
    first.set_ylim(low / 2, high * 2)
    _decades(first)
    first.set_ylabel("ms from due to acknowledged")
    handles, labels = first.get_legend_handles_labels()
    figure.legend(handles, labels, loc="lower center", ncols=len(labels), frameon=False)
    figure.suptitle("Latency under open load: medians, with the spread")
    save(plt, figure, path, bottom=0.06)


def _sections(results: Results, prefix: str) -> list[str]:
    return list(dict.fromkeys(e.section for e in results.measurements if e.section.startswith(prefix)))


def _spread(found: Sequence[Measurement]) -> list[list[float]]:
    """The distances of the lowest and the highest run from each median."""
    return [
        [each.median - min(each.values) for each in found],
        [max(each.values) - each.median for each in found],
    ]


def _bars(axis: Axes, found: list[Measurement], label: str) -> None:
    found = sorted(found, key=lambda each: each.median)
    medians = [each.median for each in found]
    colours = [OURS_COLOUR if each.side.startswith("sidecar") else THEIRS_COLOUR for each in found]
    axis.barh([each.side for each in found], medians, xerr=_spread(found), color=colours, capsize=3)
    for row, each in enumerate(found):
        axis.annotate(
            _rounded(float(short(each.median).replace(",", ""))),
            (max(each.values), row),
            xytext=(6, 0),
            textcoords="offset points",
            va="center",
            fontsize=8,
        )
    axis.set_xlabel(label)
    axis.set_xlim(0, max(max(each.values) for each in found) * ROOM)
    axis.grid(alpha=0.3, axis="x")
    axis.locator_params(axis="x", nbins=6)
    axis.xaxis.set_major_formatter(lambda value, _: _rounded(value))


def _points(axis: Axes, points: Sequence[float]) -> None:
    """Put a tick with a plain number at each measured point; logarithmic if they span much."""
    if points[-1] > 10 * points[0]:
        axis.set_xscale("log")
    axis.set_xticks(points, [_rounded(point) for point in points])
    axis.minorticks_off()


def _decades(axis: Axes) -> None:
    """Plain numbers at 1, 2 and 5 of each power of ten."""
    from matplotlib.ticker import LogLocator, NullFormatter

    axis.yaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
    axis.yaxis.set_major_formatter(lambda value, _: _rounded(value))
    axis.yaxis.set_minor_formatter(NullFormatter())


def _rounded(value: float) -> str:
    """A short number for an axis: 1.5 M, 250 k, 30."""
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


def save(plt: Any, figure: Any, path: Path, bottom: float = 0.0) -> None:
    """Save a figure. ``bottom``: the share of the height that is kept for a legend below everything."""
    figure.tight_layout(rect=(0, bottom, 1, 1))
    with whole_file(path) as partial:
        figure.savefig(partial, dpi=110)
    plt.close(figure)


def pyplot() -> Any:
    """matplotlib without a display."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    return pyplot
