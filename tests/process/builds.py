"""Another build of the daemon: a copy of this tree with a version of its own, as an upgrade brings one."""

from __future__ import annotations

import shutil
from pathlib import Path

from sidecar.tools.testing.daemon import SidecarDaemon

ROOT = Path(__file__).parents[2]
LAYOUT = Path("sidecar/shm/layout.py")


def make_build(folder: Path, version: str, *, layout_version: int | None = None) -> Path:
    """A copy that calls itself ``version``; with ``layout_version``, one that writes other segments."""
    for package in ("sidecar", "client_stub"):
        shutil.copytree(ROOT / package, folder / package, ignore=shutil.ignore_patterns("__pycache__"))
    told = folder / f"kafka_sidecar-{version}.dist-info"
    told.mkdir()
    (told / "METADATA").write_text(f"Metadata-Version: 2.1\nName: kafka-sidecar\nVersion: {version}\n")
    if layout_version is not None:
        lines = (folder / LAYOUT).read_text().splitlines(keepends=True)
        changed = [
            f"LAYOUT_VERSION: Final = {layout_version}\n" if line.startswith("LAYOUT_VERSION") else line
            for line in lines
        ]
        assert changed != lines
        (folder / LAYOUT).write_text("".join(changed))
    return folder


def run_build(daemon: SidecarDaemon, build: Path) -> None:
    """The next process is that build (the current folder would come before PYTHONPATH)."""
    daemon.use_environment(PYTHONPATH=str(build), PYTHONSAFEPATH="1")
