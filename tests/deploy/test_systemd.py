"""The unit file, as systemd itself reads it."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

from tests.tools import needs

SYSTEMD = Path(__file__).parents[2] / "deploy" / "systemd"
UNIT = SYSTEMD / "kafka-sidecar.service"
EXPOSURE_MAX = 2.0
EXEC = "/opt/kafka-sidecar/bin/kafka-sidecar"

pytestmark = needs("systemd-analyze")


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
        [
            "systemd-analyze",
            "security",
            "--offline=true",
            f"--threshold={EXPOSURE_MAX * 10:.0f}",
            str(render(tmp_path)),
        ],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-500:] + done.stderr


def test_dead_letters_survive_a_reboot() -> None:
    text = UNIT.read_text()
    assert "StateDirectory=kafka-sidecar" in text
    assert "Environment=KAFKA_SIDECAR__DEAD_LETTERS__PATH=/var/lib/kafka-sidecar/" in text


def test_every_start_reads_the_same_configuration() -> None:
    """A takeover with other words than ExecStart would be another daemon."""
    calls = re.findall(rf"{EXEC} run (?:--takeover )?(.*?)(?: >&2 & .*)?$", UNIT.read_text(), re.MULTILINE)
    assert len(calls) == 2 and len(set(calls)) == 1, calls


def test_nobody_but_the_group_gets_in() -> None:
    lines = UNIT.read_text().splitlines()
    assert {"UMask=0077", "StateDirectoryMode=0700", "RuntimeDirectoryMode=0750"} <= set(lines)
    places = [line.split() for line in (SYSTEMD / "kafka-sidecar.tmpfiles.conf").read_text().splitlines()]
    modes = {words[1]: int(words[2], 8) for words in places if words[0] == "d"}
    assert set(modes) == {"/run/kafka-sidecar", "/var/lib/kafka-sidecar", "/etc/kafka-sidecar"}
    assert not any(mode & 0o027 for mode in modes.values())


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
