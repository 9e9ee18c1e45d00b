"""The deb in a Debian of its own: installed, started, upgraded under a running daemon, removed and purged by dpkg.

The tree has no systemd: the scripts' calls of systemctl are not tried here, and the takeover is started by hand.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from sidecar.testing.fake_broker import FakeBroker

ROOT = Path(__file__).resolve().parents[2]
TOOLS = ("mmdebstrap", "dpkg-deb", "unshare", "chroot")
ABSENT = [tool for tool in TOOLS if shutil.which(tool) is None]

pytestmark = [
    pytest.mark.process,
    pytest.mark.long,
    pytest.mark.skipif(bool(ABSENT) or os.geteuid() != 0, reason=f"needs root, {', '.join(TOOLS)}"),
]

ENTER = """
set -e
mount -t proc proc "$1/proc"
mkdir -p "$1/dev/shm"
mount -t tmpfs tmpfs "$1/dev/shm"
exec chroot "$1" /usr/bin/env -i PATH=/usr/sbin:/usr/bin:/sbin:/bin HOME=/srv sh /srv/life.sh "$2"
"""
LIFE = """
set -e
as() { setpriv --reuid kafka-sidecar --regid kafka-sidecar --init-groups "$@"; }
taking() { until kafka-sidecar status >/dev/null 2>&1; do sleep 0.2; done; }
export KAFKA_SIDECAR_RUN_DIR=/run/kafka-sidecar
run="kafka-sidecar run -c /etc/kafka-sidecar/sidecar.toml -X http.listen= -X bootstrap.servers=$1"
dpkg --force-unsafe-io -i /srv/kafka-sidecar_*-1_*.deb
as kafka-sidecar config check -c /etc/kafka-sidecar/sidecar.toml
as $run 2>/srv/log.1 & first=$!
taking
echo one | kafka-sidecar produce orders -
echo '# edited' >> /etc/kafka-sidecar/sidecar.toml
dpkg --force-unsafe-io -i /srv/kafka-sidecar_*-2_*.deb
as $run --takeover 2>/srv/log.2 & second=$!
wait $first
echo "the first ended with $?"
taking
echo two | kafka-sidecar produce orders -
grep -c '# edited' /etc/kafka-sidecar/sidecar.toml
kill -TERM $(sed -n 's/.*"pid": \\([0-9]*\\),/\\1/p' /run/kafka-sidecar/daemon.json | head -n 1)
wait $second
echo "the second ended with $?"
dpkg -r kafka-sidecar
test ! -e /opt/kafka-sidecar && test ! -e /usr/bin/kafka-sidecar && test -e /etc/kafka-sidecar/sidecar.toml
echo removed
dpkg -P kafka-sidecar
test ! -e /etc/kafka-sidecar && test ! -e /run/kafka-sidecar && test ! -e /var/lib/kafka-sidecar
echo purged
ls /dev/shm | wc -l
"""


def run(*words: str, timeout_s: float = 280) -> str:
    done = subprocess.run(
        words, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=timeout_s, check=False
    )
    assert done.returncode == 0, done.stdout[-6000:]
    return done.stdout


def test_the_deb_lives_a_whole_life(tmp_path: Path) -> None:
    tree = tmp_path / "tree"
    python = f"python{sys.version_info.major}.{sys.version_info.minor}"
    run(
        "mmdebstrap", "--quiet", "--variant=apt", f"--include={python},python3,adduser", "bookworm", str(tree)
    )
    run(sys.executable, str(ROOT / "deploy/packages/build.py"), "deb", str(tree / "srv"))
    (first,) = (tree / "srv").glob("*.deb")
    run("dpkg-deb", "--raw-extract", str(first), str(tmp_path / "second"))
    control = tmp_path / "second" / "DEBIAN" / "control"
    control.write_text(re.sub("(Version: .*)-1", r"\1-2", control.read_text()))
    second = first.with_name(first.name.replace("-1_", "-2_"))
    run("dpkg-deb", "--root-owner-group", "-Znone", "--build", str(tmp_path / "second"), str(second))
    (tree / "srv" / "life.sh").write_text(LIFE)
    with FakeBroker({"orders": 1}) as kafka:
        words = ("unshare", "--mount", "--pid", "--fork", "--kill-child", "sh", "-c", ENTER, "sh")
        said = run(*words, str(tree), kafka.bootstrap_servers, timeout_s=120)
        sent = [record.value for record in kafka.records("orders")]
    assert sent == [b"one", b"two"]
    lines = said.splitlines()
    for line in (
        *("The configuration is good: 12 values set, the rest are defaults.", "the first ended with 0"),
        *("the second ended with 0", "removed", "purged"),
    ):
        assert line in lines, said
    assert "usermod --append --groups kafka-sidecar USER" in said
    assert lines[-1] == "0", "no segment is left"
