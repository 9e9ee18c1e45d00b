"""Which tests were skipped for want of a tool, for the last lines of ``make test``.

``tests/conftest.py`` notes the reason of each (``needs TOOL (Debian: PACKAGE)``) in a file.
``python -m tests.skipped_tests FILE`` prints how many there are of each reason, most first.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

NEEDS: Final = "needs "


def reasons_of(reports: Sequence[Any]) -> list[str]:
    """Of pytest's reports of skipped tests, the reasons that name what is needed."""
    words = [str(report.longrepr[2]) for report in reports if isinstance(report.longrepr, tuple)]
    reasons = [each.removeprefix("Skipped: ") for each in words]
    return [each for each in reasons if each.startswith(NEEDS)]


def lines(reasons: Sequence[str]) -> list[str]:
    """A line for each reason."""
    return [
        f"SKIPPED {count} {'test' if count == 1 else 'tests'}: {reason}"
        for reason, count in Counter(reasons).most_common()
    ]


if __name__ == "__main__":
    noted = Path(sys.argv[1])
    for line in lines(noted.read_text().splitlines() if noted.exists() else []):
        print(line)
