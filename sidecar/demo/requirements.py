"""Print what an extra of this distribution needs, one requirement a line, without building the project.

``python requirements.py demo`` follows extras that name other extras (``kafka-sidecar[daemon,spark]``).
Standard library only: it runs before anything is installed.
"""

from __future__ import annotations

import re
import sys
import tomllib
from pathlib import Path

PROJECT = Path(__file__).resolve().parents[2] / "pyproject.toml"


def requirements(extra: str) -> list[str]:
    """The base requirements and those of ``extra``; raises KeyError for an extra that does not exist."""
    project = tomllib.loads(PROJECT.read_text())["project"]
    name, extras = project["name"], project["optional-dependencies"]
    found: dict[str, None] = dict.fromkeys(project["dependencies"])

    def add(wanted: str) -> None:
        for requirement in extras[wanted]:
            own = re.fullmatch(rf"{re.escape(name)}\[(.*)\]", requirement)
            if own is None:
                found[requirement] = None
            else:
                for part in own.group(1).split(","):
                    add(part.strip())

    add(extra)
    return list(found)


if __name__ == "__main__":
    print("\n".join(requirements(sys.argv[1])))
