"""The daemon's page: one file without external resources, which polls ``/api/status``.

The exporter serves it; the functions below word times and ages for commands and the controller.
"""

from __future__ import annotations

import base64
import hashlib
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

OLDEST_HELD: Final = "oldest held record"
"""The first words of a phrase about that record, in sentences and notices."""
PAGE: Final = (Path(__file__).parent / "page.html").read_bytes()
"""The same for every daemon; its script fills in the data as text."""


def _source(tag: str) -> str:
    """The source in a Content-Security-Policy that allows only this page's own ``tag``."""
    (content,) = re.findall(rb"<%s>(.*?)</%s>" % (tag.encode(), tag.encode()), PAGE, re.DOTALL)
    return f"'sha256-{base64.b64encode(hashlib.sha256(content).digest()).decode()}'"


PAGE_POLICY: Final = (
    f"default-src 'none'; script-src {_source('script')}; style-src {_source('style')}; connect-src 'self'; "
    "img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
"""Its Content-Security-Policy: only its own script and style run, and it connects only to its daemon."""


def brokers(status: Mapping[str, Any]) -> str:
    """A text such as ``3 brokers, 1 connected: broker 2 down``: the number of brokers, and those in a bad state."""
    rows = status["brokers"]
    connected = sum(each["state"] == "up" for each in rows)
    named = ", ".join(
        f"broker {each['id']} {each['state']}" for each in rows if each["state"] not in {"up", "known"}
    )
    return (
        f"{len(rows)} broker{'' if len(rows) == 1 else 's'}"
        + ("" if connected == len(rows) else f", {connected or 'none'} connected")
        + (named and f": {named}")
    )


def oldest_held(status: Mapping[str, Any]) -> str:
    """A text such as ``37 s, orders-1, broker 1 silent``; empty without such a record, and if sentence or notices
    mention it already.
    """
    oldest = status["oldest_held"]
    if not oldest or any(OLDEST_HELD in each.lower() for each in (status["sentence"], *status["notices"])):
        return ""
    where = oldest["topic"] if oldest["partition"] is None else f"{oldest['topic']}-{oldest['partition']}"
    return f"{duration(oldest['seconds'])}, {where}, {oldest['reason']}"


def duration(seconds: float) -> str:
    """A duration such as ``3 d 4 h`` or ``5 min 2 s``: the two largest units."""
    whole = max(int(seconds), 0)
    parts = [(whole // 86_400, "d"), (whole // 3_600 % 24, "h"), (whole // 60 % 60, "min"), (whole % 60, "s")]
    shown = [f"{count} {unit}" for count, unit in parts]
    first = next((index for index, (count, _) in enumerate(parts) if count), 3)
    return " ".join(shown[first : first + 2])
