"""The unit file, as systemd itself reads it."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

SYSTEMD = Path(__file__).parents[2] / "deploy" / "systemd"
UNIT = SYSTEMD / "kafka-sidecar.service"
EXEC = "/opt/kafka-sidecar/bin/kafka-sidecar"

pytestmark = pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="no systemd-analyze here")


def render(folder: Path, extra: str = "") -> Path:
    """The unit with an ExecStart that exists on this machine (verify checks that it does)."""
    text = UNIT.read_text().replace(EXEC, sys.executable)
    path = folder / UNIT.name
    path.write_text(text.replace("[Service]\n", f"[Service]\n{extra}"))
    return path


def verify(unit: Path) -> subprocess.CompletedProcess[str]:

    return subprocess.run(
        ["systemd-analyze", "verify", "--man=no", str(unit)], capture_output=True, text=True, check=False
    )


def test_unit_verifies_without_a_word(tmp_path: Path) -> None:
    done = verify(render(tmp_path))
    assert (done.returncode, done.stderr) == (0, "")


def test_verify_would_notice(tmp_path: Path) -> None:
    # systemd-analyze exits 0 on an unknown key and only warns: that is why stderr is looked at.
    done = verify(render(tmp_path, "WatchdogSecs=30\n"))
    assert "WatchdogSecs" in done.stderr


def test_exposure_is_low(tmp_path: Path) -> None:
    done = subprocess.run(
        ["systemd-analyze", "security", "--offline=true", "--threshold=30", str(render(tmp_path))],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-500:] + done.stderr


def test_dead_letters_survive_a_reboot() -> None:
    text = UNIT.read_text()
    assert "StateDirectory=kafka-sidecar" in text
    assert "-X dead_letters.path=/var/lib/kafka-sidecar/" in text


def test_segment_survives_a_restart_by_systemd() -> None:
    """DynamicUser and RemoveIPC delete the segment on stop, and with it accepted records."""
    lines = UNIT.read_text().splitlines()
    assert "RemoveIPC=no" in lines
    assert "RuntimeDirectoryPreserve=yes" in lines
    assert not any(line.startswith("DynamicUser") for line in lines)
    assert "User=kafka-sidecar" in lines
    assert (
        (SYSTEMD / "kafka-sidecar.sysusers.conf").read_text().splitlines()[-1].startswith("u kafka-sidecar ")
    )
