"""The report as one HTML page without anything from elsewhere: the flow of the rows, and the rows a second.

On the driver, in the process of the pipeline's command or of spark-submit.
"""

from __future__ import annotations

import math
from html import escape
from itertools import pairwise
from typing import Final, NamedTuple

from client_stub.pipeline.report import OutputReport, Report, count_text, partition_name

WIDTH: Final = 920
_CHART_HEIGHT: Final = 200
_CHART_LEFT: Final = 70
_CHART_POINTS: Final = 120
"""A longer run is shown by the means of longer intervals."""
_BOX: Final = (190, 62)
_GAP: Final = (110, 26)
_STYLE: Final = """
:root { --ink: #1b2430; --dim: #5b6776; --rule: #d8dee6; --paper: #fff; --view: #e7eefb; --topic: #e3f4e6;
  --bad: #fbe6e4; --wire: #5b708c; --curve: #2f6fde; --yes: #1a7f37; --no: #c62828; color-scheme: light dark; }
@media (prefers-color-scheme: dark) { :root { --ink: #e4e9f0; --dim: #9aa7b7; --rule: #38424f; --paper: #141a21;
  --view: #22314d; --topic: #1d3b27; --bad: #4a2523; --wire: #8aa0bd; --curve: #79a6ff; --yes: #57c274;
  --no: #ff8a80; } }
body { font: 15px/1.5 system-ui, sans-serif; max-width: 960px; margin: 2em auto; padding: 0 1em; color: var(--ink);
  background: var(--paper); }
h1 { margin: 0; } h2 { margin: 1.6em 0 .5em; font-size: 1.15em; } .dim { color: var(--dim); }
.tiles { display: flex; flex-wrap: wrap; gap: .6em; margin: 1em 0; padding: 0; list-style: none; }
.tiles li { border: 1px solid var(--rule); border-radius: 8px; padding: .4em .9em; min-width: 7em; }
.tiles b { display: block; font-size: 1.3em; font-variant-numeric: tabular-nums; }
.scroll { overflow-x: auto; }
table { border-collapse: collapse; } td, th { padding: .25em 1.1em .25em 0; border-bottom: 1px solid var(--rule); }
th { text-align: left; color: var(--dim); font-weight: 500; }
.n { text-align: right; font-variant-numeric: tabular-nums; }
.ok { color: var(--yes); } .bad { color: var(--no); }
svg { max-width: 100%; min-width: 40em; height: auto; }
svg text { fill: var(--ink); font-size: 13px; } svg .dim { fill: var(--dim); font-size: 12px; }
svg .name { font-size: 14px; font-weight: 600; } svg path { fill: none; stroke: var(--wire); stroke-width: 1.6; }
svg rect { stroke: var(--wire); } .view { fill: var(--view); } .topic { fill: var(--topic); }
.apart { fill: var(--bad); }
svg .grid { stroke: var(--rule); stroke-width: 1; } svg .curve { stroke: var(--curve); stroke-width: 2; }
svg .area { fill: var(--curve); fill-opacity: .12; stroke: none; }
"""


def page(report: Report) -> str:
    name, verdict = escape(report.pipeline), escape(report.verdict())
    run = f"Run {report.run_id}, {report.seconds:,.1f} s, from {report.source}."
    return (
        "<!doctype html><html lang='en'><meta charset='utf-8'>"
        "<meta name='viewport' content='width=device-width, initial-scale=1'>"
        f"<title>{name}: {escape(report.run_id)}</title><style>{_STYLE}</style>"
        f"<h1>{name}</h1><p class='{'ok' if report.ok else 'bad'}'><strong>{verdict}</strong></p>"
        f"<p class='dim'>{escape(run)}</p>{_tiles(report)}"
        f"<h2>Flow</h2>{_flow(report)}<h2>Acknowledged rows a second</h2>{_chart(report)}"
        f"<h2>Steps</h2>{_steps(report)}<h2>Outputs</h2>{_outputs(report)}</html>\n"
    )


def _tiles(report: Report) -> str:
    sent = sum(output.rows for output in report.outputs)
    tiles = {
        "rows read": count_text(report.rows_read),
        "rows sent": f"{sent:,}",
        "bad rows": f"{sum(output.bad_rows for output in report.outputs):,}",
        "possible duplicates": f"{sum(output.duplicates for output in report.outputs):,}",
        "rows a second": f"{sent / report.seconds:,.0f}" if report.seconds else "",
    }
    if report.batches:
        tiles["micro-batches"] = f"{report.batches:,}"
    shown = "".join(f"<li><b>{text}</b>{name}</li>" for name, text in tiles.items())
    return f"<ul class='tiles'>{shown}</ul>"


class _Box(NamedTuple):
    column: int
    row: int
    kind: str
    name: str
    text: str

    @property
    def x(self) -> int:
        return 1 + self.column * (_BOX[0] + _GAP[0])

    @property
    def y(self) -> int:
        return 1 + self.row * (_BOX[1] + _GAP[1])

    def svg(self) -> str:
        width, height = _BOX
        return (
            f"<rect class='{self.kind}' x='{self.x}' y='{self.y}' width='{width}' height='{height}' rx='8'/>"
            f"<text class='name' x='{self.x + 12}' y='{self.y + 26}'>{escape(_cut(self.name, 21))}</text>"
            f"<text x='{self.x + 12}' y='{self.y + 47}'>{escape(self.text)}</text>"
            f"<title>{escape(self.name)}</title>"
        )

    def arrow_to(self, other: _Box, text: str = "") -> str:
        x, y = self.x + _BOX[0], self.y + _BOX[1] / 2
        to_x, to_y = other.x - 4, other.y + _BOX[1] / 2
        # In the gap before its end, or an arrow over several columns would lie on the boxes of its row.
        bend = to_x - _GAP[0] + 8
        line = f"M{x} {y} H{bend} C{bend + 50} {y} {to_x - 50} {to_y} {to_x} {to_y}"
        head = f"M{to_x - 6} {to_y - 5} l7 5 l-7 5"
        label = f"<text class='dim' x='{x + 8}' y='{y - 8}'>{escape(text)}</text>" if text else ""
        return f"<path d='{line}'/><path d='{head}'/>{label}"


def _flow(report: Report) -> str:
    """The source, the steps in columns by what they read, the topics, and where the bad rows went."""
    counts = {"source": report.rows_read, **report.steps}
    columns: dict[str, int] = {}
    taken: dict[int, int] = {}
    boxes: dict[str, _Box] = {}
    for name, count in counts.items():
        columns[name] = max((columns[each] + 1 for each in report.reads.get(name, ())), default=0)
        row = taken.get(columns[name], 0)
        taken[columns[name]] = row + 1
        boxes[name] = _Box(columns[name], row, "view", name, _rows(count))
    parts = [
        boxes[each].arrow_to(boxes[name], _dropped(counts[each], counts[name]))
        for name in counts
        for each in report.reads.get(name, ())
    ]
    for output in report.outputs:
        column = columns[output.view] + 1
        ends = [("topic", output.topic, f"{output.rows:,} rows")]
        if output.bad_rows:
            ends.append(("apart", "bad rows", f"{output.bad_rows:,}, {output.bad_rows_kept:,} kept"))
        for kind, name, text in ends:
            row = taken.get(column, 0)
            taken[column] = row + 1
            box = _Box(column, row, kind, name, text)
            parts += [boxes[output.view].arrow_to(box), box.svg()]
    parts += [box.svg() for box in boxes.values()]
    width = (max(taken) + 1) * (_BOX[0] + _GAP[0]) - _GAP[0] + 2
    height = max(taken.values()) * (_BOX[1] + _GAP[1]) - _GAP[1] + 2
    return (
        f"<div class='scroll'><svg width='{width}' height='{height}' viewBox='0 0 {width} {height}' role='img' "
        f"aria-label='flow of the rows'>{''.join(parts)}</svg></div>"
    )


def _cut(text: str, length: int) -> str:
    return text if len(text) <= length else f"{text[: length - 1]}…"


def _rows(count: int | None) -> str:
    return "not counted" if count is None else f"{count:,} rows"


def _dropped(before: int | None, rows: int | None) -> str:
    if before is None or rows is None or rows == before:
        return ""
    return f"−{before - rows:,}" if rows < before else f"+{rows - before:,}"


def _chart(report: Report) -> str:
    rates = _rates(report)
    most = max((rate for _, rate in rates), default=0.0)
    end = max((seconds for seconds, _ in rates), default=0.0)
    if not most or not end:
        return "<p>The run was too short for a picture.</p>"
    top = _round_up(most)
    width = WIDTH - _CHART_LEFT - 20

    def x(seconds: float) -> float:
        return _CHART_LEFT + seconds / end * width

    def y(rate: float) -> float:
        return 10 + (1 - rate / top) * (_CHART_HEIGHT - 10)

    points = " L".join(f"{x(seconds):.1f} {y(rate):.1f}" for seconds, rate in rates)
    lines = "".join(
        f"<path class='grid' d='M{_CHART_LEFT} {y(rate):.1f} H{WIDTH - 20}'/>"
        f"<text class='dim' text-anchor='end' x='{_CHART_LEFT - 8}' y='{y(rate) + 4:.1f}'>{rate:,.0f}</text>"
        for rate in (0, top / 2, top)
    )
    times = "".join(
        f"<text class='dim' text-anchor='middle' x='{x(each):.1f}' y='{_CHART_HEIGHT + 20}'>{each:,.0f} s</text>"
        for each in (0, end / 4, end / 2, end * 3 / 4, end)
    )
    first, last = rates[0][0], rates[-1][0]
    return (
        f"<div class='scroll'><svg width='{WIDTH}' height='{_CHART_HEIGHT + 30}' role='img' "
        f"viewBox='0 0 {WIDTH} {_CHART_HEIGHT + 30}' aria-label='rows a second'>{lines}{times}"
        f"<path class='area' d='M{x(first):.1f} {y(0):.1f} L{points} L{x(last):.1f} {y(0):.1f} Z'/>"
        f"<path class='curve' d='M{points}'/></svg></div>"
    )


def _rates(report: Report) -> list[tuple[float, float]]:
    """(seconds, rows a second), of at most _CHART_POINTS intervals."""
    step = max(1, math.ceil(len(report.samples) / _CHART_POINTS))
    samples = report.samples[::step]
    return [
        ((before.seconds + after.seconds) / 2, (after.rows - before.rows) / (after.seconds - before.seconds))
        for before, after in pairwise(samples)
        if after.seconds > before.seconds
    ]


def _round_up(value: float) -> float:
    """To 1, 2, 2.5, 5 or 10 times a power of ten."""
    power = 10.0 ** math.floor(math.log10(value))
    return next(step * power for step in (1, 2, 2.5, 5, 10) if step * power >= value)


def _steps(report: Report) -> str:
    rows = ["<tr><th>view</th><th class='n'>rows</th><th>reads</th></tr>"]
    for name, count in {"source": report.rows_read, **report.steps}.items():
        read = ", ".join(report.reads.get(name, ())) or (report.source if name == "source" else "")
        rows.append(
            f"<tr><td>{escape(name)}</td><td class='n'>{count_text(count)}</td><td>{escape(read)}</td></tr>"
        )
    return f"<div class='scroll'><table>{''.join(rows)}</table></div>"


def _outputs(report: Report) -> str:
    parts = []
    for output in report.outputs:
        parts.append(
            f"<p><strong>{escape(output.topic)}</strong>: {output.rows:,} rows in {output.tasks:,} tasks, "
            f"{output.bad_rows:,} bad rows of which {output.bad_rows_kept:,} are kept, at most {output.duplicates:,} "
            f"duplicates by {output.retried_tasks:,} tasks that were started again.</p>{_partitions(output)}"
        )
    return "".join(parts)


def _partitions(output: OutputReport) -> str:
    rows = [
        "<tr><th>partition</th><th class='n'>rows</th><th class='n'>first offset</th><th class='n'>last offset</th>"
        "<th class='n'>offsets from first to last</th></tr>"
    ]
    rows += [
        f"<tr><td>{escape(partition_name(output, place))}</td><td class='n'>{count.rows:,}</td>"
        f"<td class='n'>{count.first}</td><td class='n'>{count.last}</td><td class='n'>{count.offsets:,}</td></tr>"
        for place, count in sorted(output.partitions.items())
    ]
    return f"<div class='scroll'><table>{''.join(rows)}</table></div>" if output.partitions else ""
