"""Prints the requirements of an extra of this distribution, one per line, without building the project.

``python requirements.py demo`` follows extras that name other extras (``kafka-sidecar[daemon,spark]``). Extras after
``--without`` are left out wherever they are named. It uses only the standard library, as it runs before anything is
installed.
"""

from __future__ import annotations

import argparse
import re
import tomllib
from collections.abc import Collection
from pathlib import Path

PROJECT = Path(__file__).resolve().parents[3] / "pyproject.toml"


def requirements(extra: str, without: Collection[str] = ()) -> list[str]:
    """The base requirements and those of ``extra``, without the extras ``without``. Raises KeyError for an extra that
    does not exist.
    """
    project = tomllib.loads(PROJECT.read_text())["project"]
    name, extras = project["name"], project["optional-dependencies"]
    found: dict[str, None] = dict.fromkeys(project["dependencies"])

    def add(wanted: str) -> None:
        for requirement in extras[wanted]:
            own = re.fullmatch(rf"{re.escape(name)}\[(.*)\]", requirement)
            if own is None:
                found[requirement] = None
            else:
                for part in map(str.strip, own.group(1).split(",")):
                    if part not in without:
                        add(part)

    add(extra)
    return list(found)


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("extra")
    parser.add_argument("--without", nargs="*", default=())
    print("\n".join(requirements(**vars(parser.parse_args()))))
