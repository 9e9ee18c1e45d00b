"""The report as one HTML page without anything from elsewhere: the flow of the rows, and the rows a second."""

from __future__ import annotations

from html import escape
from typing import Final

from client_stub.pipeline.report import Report, partition_name

WIDTH: Final = 900
_CHART_HEIGHT: Final = 180
_BOX: Final = (190, 64)
_STYLE: Final = """
body { font: 15px/1.5 system-ui, sans-serif; max-width: 960px; margin: 2em auto; padding: 0 1em; color: #1b2430; }
table { border-collapse: collapse; margin: 1em 0; } td, th { padding: .25em .9em; border-bottom: 1px solid #d8dee6; }
td.n { text-align: right; font-variant-numeric: tabular-nums; } th { text-align: left; }
.ok { color: #1a7f37; } .bad { color: #c62828; } svg { max-width: 100%; height: auto; }
"""


def page(report: Report) -> str:
    name, verdict = escape(report.pipeline), escape(report.verdict())
    return (
        f"<!doctype html><html lang='en'><meta charset='utf-8'><title>{name}: {escape(report.run_id)}</title>"
        f"<style>{_STYLE}</style><h1>{name}</h1>"
        f"<p class='{'ok' if report.ok else 'bad'}'><strong>{verdict}</strong></p>"
        f"<p>Run {escape(report.run_id)}, {report.seconds:,.1f} s, from {escape(report.source)}.</p>"
        f"<h2>Flow</h2>{_flow(report)}<h2>Rows a second</h2>{_chart(report)}"
        f"<h2>Outputs</h2>{_outputs(report)}</html>\n"
    )


def _flow(report: Report) -> str:
    """Source, steps and outputs from left to right, with their rows."""
    width, height = _BOX
    boxes = [("source", report.rows_read), *report.steps.items()]
    column = width + 60
    rows = max(len(report.outputs), 1)
    total = (len(boxes) + 1) * column
    middle = (rows - 1) * (height + 20) / 2
    parts = []
    for index, (name, count) in enumerate(boxes):
        parts.append(_box(index * column, middle, name, count, "#e7eefb"))
        if index:
            parts.append(_arrow(index * column - 60, middle, index * column, middle))
    names = [name for name, _ in boxes]
    for index, output in enumerate(report.outputs):
        y = index * (height + 20)
        start = names.index(output.view) if output.view in names else len(names) - 1
        bad = f"; {output.bad_rows:,} bad" if output.bad_rows else ""
        parts.append(_box(len(boxes) * column, y, output.topic, output.rows, "#e3f4e6", bad))
        parts.append(_arrow(start * column + width, middle, len(boxes) * column, y))
    size = f"0 0 {total} {rows * (height + 20)}"
    return f"<svg viewBox='{size}' role='img' aria-label='flow of the rows'>{''.join(parts)}</svg>"


def _box(x: float, y: float, name: str, count: int | None, colour: str, more: str = "") -> str:
    width, height = _BOX
    text = name if len(name) <= 24 else f"{name[:23]}…"
    rows = "not counted" if count is None else f"{count:,} rows"
    return (
        f"<rect x='{x}' y='{y}' width='{width}' height='{height}' rx='8' fill='{colour}' stroke='#8aa0bd'/>"
        f"<text x='{x + 10}' y='{y + 27}' font-size='14' font-weight='600'>{escape(text)}</text>"
        f"<text x='{x + 10}' y='{y + 48}' font-size='13'>{escape(rows + more)}</text>"
    )


def _arrow(x: float, y: float, to_x: float, to_y: float) -> str:
    half = _BOX[1] / 2
    return (
        f"<path d='M{x} {y + half} C{x + 40} {y + half} {to_x - 40} {to_y + half} {to_x - 4} {to_y + half}' "
        "fill='none' stroke='#5b708c' stroke-width='1.6'/>"
        f"<path d='M{to_x - 9} {to_y + half - 5} l8 5 l-8 5' fill='none' stroke='#5b708c' stroke-width='1.6'/>"
    )


def _chart(report: Report) -> str:
    rates = [
        ((before.seconds + after.seconds) / 2, (after.rows - before.rows) / (after.seconds - before.seconds))
        for before, after in zip(report.samples, report.samples[1:], strict=False)
        if after.seconds > before.seconds
    ]
    most = max((rate for _, rate in rates), default=0.0)
    end = max((seconds for seconds, _ in rates), default=0.0)
    if not most or not end:
        return "<p>The run was too short for a picture.</p>"
    points = " ".join(
        f"{60 + seconds / end * (WIDTH - 80):.1f},{_CHART_HEIGHT - rate / most * (_CHART_HEIGHT - 20):.1f}"
        for seconds, rate in rates
    )
    return (
        f"<svg viewBox='0 0 {WIDTH} {_CHART_HEIGHT + 30}' role='img' aria-label='rows a second'>"
        f"<line x1='60' y1='{_CHART_HEIGHT}' x2='{WIDTH - 20}' y2='{_CHART_HEIGHT}' stroke='#8aa0bd'/>"
        f"<polyline points='{points}' fill='none' stroke='#2f6fde' stroke-width='2'/>"
        f"<text x='0' y='24' font-size='12'>{most:,.0f}</text><text x='0' y='{_CHART_HEIGHT}' font-size='12'>0</text>"
        f"<text x='60' y='{_CHART_HEIGHT + 20}' font-size='12'>0 s</text>"
        f"<text x='{WIDTH - 60}' y='{_CHART_HEIGHT + 20}' font-size='12'>{end:,.0f} s</text></svg>"
    )


def _outputs(report: Report) -> str:
    rows = [
        "<tr><th>topic</th><th>partition</th><th>rows</th><th>first offset</th><th>last offset</th></tr>",
    ]
    for output in report.outputs:
        rows.append(
            f"<tr><td>{escape(output.topic)}</td><td>all</td><td class='n'>{output.rows:,}</td><td colspan='2'>"
            f"{output.bad_rows:,} bad rows, {output.retried_tasks} retried tasks, at most {output.duplicates:,} "
            "duplicates</td></tr>"
        )
        rows += [
            f"<tr><td></td><td>{escape(partition_name(output, place))}</td><td class='n'>{count.rows:,}</td>"
            f"<td class='n'>{count.first}</td><td class='n'>{count.last}</td></tr>"
            for place, count in sorted(output.partitions.items())
        ]
    return f"<table>{''.join(rows)}</table>"
