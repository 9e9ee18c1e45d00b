"""Goal: no file names a home or a machine."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def tracked(*patterns: str) -> list[Path]:
    listed = subprocess.run(
        ["git", "ls-files", "-z", *patterns], cwd=ROOT, capture_output=True, text=True, check=False
    )
    names = [name for name in listed.stdout.split("\0") if name]
    # Outside of a clone (an unpacked archive) everything counts.
    found = [ROOT / name for name in names] or [
        each for glob in patterns for each in ROOT.glob(f"*/**/{glob}")
    ]
    return [path for path in found if path.exists() and ".demo" not in path.parts]


def test_no_file_names_a_home_or_a_machine() -> None:
    pattern = re.compile(r"/(?:home|Users)/\w+|/root/|/work/")
    found = [
        f"{path.relative_to(ROOT)}: {match.group()}"
        for path in tracked(
            "*.py", "*.pyx", "*.pxi", "*.md", "*.toml", "*.yaml", "*.yml", "Makefile", "Dockerfile"
        )
        if path != Path(__file__)
        for match in pattern.finditer(path.read_text())
    ]
    assert not found, "\n".join(found)
