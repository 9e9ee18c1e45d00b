"""Write files that contain secrets."""

from __future__ import annotations

import os
from pathlib import Path

from sidecar.shm.private_files import replacing


def write_private(path: Path, text: str) -> Path:
    """Replace a file with one of mode 0600 in one step, as a careful operator would; returns its path."""
    new = path.with_name(f".{path.name}.new")
    with os.fdopen(replacing(path, new), "w", encoding="utf-8") as file:
        file.write(text)
    return new.replace(path)
