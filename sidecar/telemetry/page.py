"""The daemon's page: one look at state, workers and totals. No scripts, no outside resources."""

from __future__ import annotations

import html
import time
from collections.abc import Mapping
from typing import Any

_STYLE = """
:root { color-scheme: light dark; --line: #8884; --good: #1a7f37; --bad: #c4320a; }
body { font: 15px/1.5 system-ui, sans-serif; max-width: 60rem; margin: 2rem auto; padding: 0 1rem; }
h1 { font-size: 1.4rem; margin: 0; } h2 { font-size: 1.05rem; margin: 2rem 0 .5rem; }
.state { font-weight: 600; } .good { color: var(--good); } .bad { color: var(--bad); }
table { border-collapse: collapse; width: 100%; } .wide { overflow-x: auto; }
th, td { text-align: left; padding: .3rem .8rem .3rem 0; border-bottom: 1px solid var(--line); }
th { font-weight: 600; } .number { text-align: right; font-variant-numeric: tabular-nums; }
dl { display: grid; grid-template-columns: max-content 1fr; gap: .2rem 1rem; } dt { opacity: .7; }
dd { margin: 0; overflow-wrap: anywhere; } nav a { margin-right: 1rem; }
@media (prefers-color-scheme: dark) { :root { --good: #4ac26b; --bad: #ff8a65; } }
"""

_MAIN_COUNTERS = (
    ("records_accepted_total", "records accepted"),
    ("records_delivered_total", "records delivered"),
    ("records_failed_total", "records failed"),
    ("records_dead_lettered_total", "records dead lettered"),
    ("records_held", "records held"),
    ("bytes_accepted_total", "bytes accepted"),
    ("batches_sent_total", "batches sent"),
    ("batches_retried_total", "batches sent again"),
    ("request_errors_total", "requests without an answer"),
    ("clients_connected", "clients connected"),
    ("buffer_pages_taken", "buffer pages in use"),
    ("malformed_frames_total", "malformed frames refused"),
)


def render_page(status: Mapping[str, Any]) -> str:
    """The whole page for one status with ``counters`` (totals by name); it asks for itself again every 5
    s."""
    healthy = status["state"] == "running"
    sentence = html.escape(status["sentence"] or "Everything runs.")
    counters = status["counters"]
    totals = "".join(
        f'<tr><td>{label}</td><td class="number">{counters[name]:,}</td></tr>'
        for name, label in _MAIN_COUNTERS
        if name in counters
    )
    workers = "".join(
        f"<tr><td>{worker['index']}</td><td>{html.escape(worker['state'])}</td>"
        f'<td class="number">{worker["pid"]}</td><td class="number">{worker["slot"]}</td>'
        f'<td class="number">{worker["clients"]}</td>'
        f"<td>{'any' if worker['cpu'] is None else worker['cpu']}</td></tr>"
        for worker in status["workers"]
    )
    facts = {
        "Kafka": f"{status['bootstrap']} ({brokers(status)})",
        "Cluster id": status["cluster_id"] or "not known yet",
        "Run dir": status["run_dir"],
        "Segment": status["segment"],
        "Up for": duration(time.time() - status["started_ms"] / 1000.0),
        "Version": f"{status['version']}, instance {status['instance'][:8]}",
        "Worker restarts": str(status["restarts"]),
    }
    if status["held_slots"]:
        facts["Held slots"] = ", ".join(map(str, status["held_slots"])) + " (records of dead workers)"
    failures = "".join(
        f"<tr><td>{html.escape(each['topic'])}</td><td>{html.escape(each['error'])}</td>"
        f'<td class="number">{each["records"]:,}</td><td>{html.escape(each["client"])}</td>'
        f"<td>{duration(time.time() - each['last_ms'] / 1000.0)} ago</td><td>{html.escape(each['text'])}</td></tr>"
        for each in status["failures"]
    )
    failed_section = (
        '<h2>Last failures</h2><div class="wide"><table><tr><th>topic</th><th>error</th><th class="number">records</th>'
        f"<th>client</th><th>last</th><th>text</th></tr>{failures}</table></div>"
        if failures
        else ""
    )
    described = "".join(f"<dt>{html.escape(k)}</dt><dd>{html.escape(str(v))}</dd>" for k, v in facts.items())
    return f"""<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta http-equiv="refresh" content="5">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>kafka-sidecar: {html.escape(status["state"])}</title><link rel="icon"
href="data:,"><style>{_STYLE}</style></head>
<body><h1>kafka-sidecar</h1>
<p><span class="state {"good" if healthy else "bad"}">{html.escape(status["state"])}</span> · {sentence}</p>
<dl>{described}</dl>
<h2>Workers</h2><div class="wide"><table>
<tr><th>worker</th><th>state</th><th class="number">pid</th><th class="number">slot</th>
<th class="number">clients</th><th>CPU</th></tr>{workers}</table></div>
{failed_section}
<h2>Totals</h2><div class="wide"><table>{totals}</table></div>
<p><nav><a href="/metrics">metrics</a><a href="/healthz">healthz</a>
<a href="/status.json">status.json</a></nav></p>
</body></html>
"""


def brokers(status: Mapping[str, Any]) -> str:
    """How many brokers there are, and which of them are no good."""
    rows = status["brokers"]
    bad = ", ".join(f"{each['id']} {each['state']}" for each in rows if each["state"] != "up")
    return f"{len(rows)} broker{'' if len(rows) == 1 else 's'}{bad and ': ' + bad}"


def duration(seconds: float) -> str:
    """``3 d 4 h``, ``5 min 2 s``: the two largest units."""
    whole = max(int(seconds), 0)
    parts = [(whole // 86_400, "d"), (whole // 3_600 % 24, "h"), (whole // 60 % 60, "min"), (whole % 60, "s")]
    shown = [f"{count} {unit}" for count, unit in parts]
    first = next((index for index, (count, _) in enumerate(parts) if count), 3)
    return " ".join(shown[first : first + 2])
