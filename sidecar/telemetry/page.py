"""The daemon's page: one file without outside resources, which asks ``/api/status`` again and again."""

from __future__ import annotations

import base64
import hashlib
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

PAGE: Final = (Path(__file__).parent / "page.html").read_bytes()
"""The same for every daemon: what differs is put in by its script, as text."""


def _source(tag: str) -> str:
    """The source in a Content-Security-Policy that lets this page's own ``tag`` in, and no other."""
    (content,) = re.findall(rb"<%s>(.*?)</%s>" % (tag.encode(), tag.encode()), PAGE, re.DOTALL)
    return f"'sha256-{base64.b64encode(hashlib.sha256(content).digest()).decode()}'"


PAGE_POLICY: Final = (
    f"default-src 'none'; script-src {_source('script')}; style-src {_source('style')}; connect-src 'self'; "
    "img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
"""Its Content-Security-Policy: nothing but its own script and style runs, and it asks nobody but its daemon."""


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
