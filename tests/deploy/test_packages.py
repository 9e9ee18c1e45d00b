"""Deb and rpm in a Debian of its own: installed, started, upgraded under a running daemon, removed, by dpkg and by rpm.

The tree has no systemd: the scripts' calls of systemctl are not tried here, and the takeover is started by hand. The
rpm requires a package of the test's, by the names that Fedora and its kin have.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from sidecar.tools.testing.fake_broker import FakeBroker
from tests.tools import ROOT_USER, needs

ROOT = Path(__file__).resolve().parents[2]

pytestmark = [
    pytest.mark.process,
    pytest.mark.long,
    needs(ROOT_USER, "mmdebstrap", "dpkg-deb", "rpmbuild", "unshare", "chroot"),
]

BUILD_S = 1_200
"""A machine that has much else to do takes minutes for a wheel of each."""

ENTER = """
set -e
mount -t proc proc "$1/proc"
mkdir -p "$1/dev/shm"
mount -t tmpfs tmpfs "$1/dev/shm"
exec chroot "$1" /usr/bin/env -i PATH=/usr/sbin:/usr/bin:/sbin:/bin HOME=/srv sh /srv/life.sh "$2"
"""
DEB = """
install() { dpkg --force-unsafe-io -i /srv/kafka-sidecar_*-$1_*.deb; }
remove() { dpkg -r kafka-sidecar; test -e /etc/kafka-sidecar/sidecar.toml; }
purge() { dpkg -P kafka-sidecar; }
"""
RPM = """
install() { rpm --force-debian -U /srv/*/kafka-sidecar-*-$1.*.rpm; }
remove() { rpm --force-debian -e kafka-sidecar; grep -q '# edited' /etc/kafka-sidecar/sidecar.toml.rpmsave; }
purge() { rm -r /etc/kafka-sidecar /run/kafka-sidecar /var/lib/kafka-sidecar; }
! rpm --force-debian -U /srv/*/kafka-sidecar-*-1.*.rpm 2>/srv/lacks
grep python /srv/lacks
rpm --force-debian -i /srv/*/system-1-1.*.rpm
"""
LIFE = """
set -e
as() { setpriv --reuid kafka-sidecar --regid kafka-sidecar --init-groups "$@"; }
taking() { until kafka-sidecar status >/dev/null 2>&1; do sleep 0.2; done; }
export KAFKA_SIDECAR_RUN_DIR=/run/kafka-sidecar
run="kafka-sidecar run -c /etc/kafka-sidecar/sidecar.toml -X http.listen= -X bootstrap.servers=$1"
install 1
stat -c '%U:%G %a %n' /etc/kafka-sidecar /etc/kafka-sidecar/sidecar.toml /run/kafka-sidecar /var/lib/kafka-sidecar
as kafka-sidecar config check -c /etc/kafka-sidecar/sidecar.toml
as $run 2>/srv/log.1 & first=$!
taking
echo one | kafka-sidecar produce orders -
echo '# edited' >> /etc/kafka-sidecar/sidecar.toml
install 2
as $run --takeover 2>/srv/log.2 & second=$!
wait $first
echo "the first ended with $?"
taking
echo two | kafka-sidecar produce orders -
grep -c '# edited' /etc/kafka-sidecar/sidecar.toml
kill -TERM $(sed -n 's/.*"pid": \\([0-9]*\\),/\\1/p' /run/kafka-sidecar/daemon.json | head -n 1)
wait $second
echo "the second ended with $?"
remove
for each in /opt/kafka-sidecar /usr/bin/kafka-sidecar /usr/lib/systemd/system/kafka-sidecar.service; do
    test ! -e $each || { find $each; exit 1; }
done
echo removed
purge
test ! -e /etc/kafka-sidecar && test ! -e /run/kafka-sidecar && test ! -e /var/lib/kafka-sidecar
echo purged
ls /dev/shm | wc -l
"""
SYSTEM = """
Name: system
Version: 1
Release: 1
Summary: What a system has that the rpm requires
License: none
Provides: {provides}
%description
.
%files
"""


def run(*words: str, timeout_s: float = BUILD_S) -> str:
    done = subprocess.run(
        words, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=timeout_s, check=False
    )
    assert done.returncode == 0, done.stdout[-6000:]
    return done.stdout


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A Debian with two revisions of both packages in /srv."""
    folder = tmp_path_factory.mktemp("packages")
    made = folder / "tree"
    python = f"python{sys.version_info.major}.{sys.version_info.minor}"
    include = f"--include={python},python3,adduser,rpm"
    run("mmdebstrap", "--quiet", "--variant=apt", include, "bookworm", str(made))
    build = (sys.executable, str(ROOT / "deploy/packages/build.py"), "deb", "rpm", str(made / "srv"))
    run(*build, "--revision", "1", "--revision", "2", "--uncompressed")
    spec = folder / "system.spec"
    spec.write_text(SYSTEM.format(provides=f"{python}, glibc, shadow-utils, /bin/sh"))
    run("rpmbuild", "-bb", f"--define=_topdir {folder}/rpm", f"--define=_rpmdir {made}/srv", str(spec))
    return made


@pytest.mark.parametrize("kind", ["deb", "rpm"])
def test_a_package_lives_a_whole_life(tree: Path, kind: str) -> None:
    (tree / "srv" / "life.sh").write_text({"deb": DEB, "rpm": RPM}[kind] + LIFE)
    with FakeBroker({"orders": 1}) as kafka:
        words = ("unshare", "--mount", "--pid", "--fork", "--kill-child", "sh", "-c", ENTER, "sh")
        said = run(*words, str(tree), kafka.bootstrap_servers)
        sent = [record.value for record in kafka.records("orders")]
    assert sent == [b"one", b"two"], said
    lines = said.splitlines()
    for line in (
        "root:kafka-sidecar 750 /etc/kafka-sidecar",
        "root:kafka-sidecar 640 /etc/kafka-sidecar/sidecar.toml",
        "kafka-sidecar:kafka-sidecar 750 /run/kafka-sidecar",
        "kafka-sidecar:kafka-sidecar 700 /var/lib/kafka-sidecar",
        "the first ended with 0",
        "the second ended with 0",
        "removed",
        "purged",
    ):
        assert line in lines, said
    assert any(line.startswith("The configuration is good: ") for line in lines), said
    assert "usermod --append --groups kafka-sidecar USER" in said
    assert lines[-1] == "0", "no segment is left"
