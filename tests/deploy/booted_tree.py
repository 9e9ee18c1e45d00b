"""A booted tree: Debian 12 with a real systemd as its first process, in systemd-nspawn, the product installed in it.

The tree is made once, in ``.demo/nspawn``; the product is installed again when its sources have changed. Nothing that
happens after the boot is kept. Tree and host share the network, so a Kafka of the host is at 127.0.0.1 for both.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from sidecar.tools.testing.waiting import wait_until
from tests.tools import ROOT_USER

ROOT: Final = Path(__file__).resolve().parents[2]
PLACE: Final = ROOT / ".demo" / "nspawn"
TREE: Final = PLACE / "tree"
NEEDED: Final = (ROOT_USER, "mmdebstrap", "systemd-nspawn", "nsenter", "unshare", "chroot")
PACKAGES: Final = (
    "systemd,systemd-sysv,dbus,python3,python3-venv,python3-dev,gcc,libc6-dev,ca-certificates,procps"
)
SOURCES: Final = ("pyproject.toml", "README.md", "LICENSE", "sidecar", "client_stub", "pyspark_kafka_sidecar")
INSTALL: Final = """
set -e
cd /src
test -x /opt/build/bin/pip || python3 -m venv /opt/build
rm -rf /opt/kafka-sidecar /wheels build *.egg-info
python3 -m venv --without-pip /opt/kafka-sidecar
/opt/build/bin/pip -q wheel --no-deps --wheel-dir /wheels .
/opt/build/bin/pip -q --python /opt/kafka-sidecar/bin/python install "$(echo /wheels/*.whl)[daemon]"
/opt/kafka-sidecar/bin/python -I -c 'import sidecar.kernel._kernel, client_stub.native._native'
"""
# A private view of the mounts, with version 2 of cgroups alone: a systemd inside takes no mixture.
BOOT: Final = """
set -e
mount --make-rprivate /
umount -R /sys/fs/cgroup
mount -t cgroup2 none /sys/fs/cgroup
exec systemd-nspawn --quiet --directory="$1" --boot --register=no --keep-unit --console=pipe --volatile=overlay \
    --machine=kafka-sidecar-test --resolv-conf=off --timezone=off --link-journal=no
"""
ENVIRONMENT: Final = (
    "env",
    "-i",
    "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
    "LANG=C",
)


class BootedTree:
    """Use as a context manager; one at a time. ``run`` is for any thread."""

    def __init__(self) -> None:
        PLACE.mkdir(parents=True, exist_ok=True)
        self._lock = (PLACE / "lock").open("w")
        fcntl.flock(self._lock, fcntl.LOCK_EX)
        _make_tree()
        _install()
        self._log = (PLACE / "boot.log").open("w")
        self._nspawn = subprocess.Popen(
            ["unshare", "--mount", "sh", "-c", BOOT, "sh", str(TREE)],
            stdin=subprocess.DEVNULL,
            stdout=self._log,
            stderr=subprocess.STDOUT,
        )
        self._init_pid = 0

    def __enter__(self) -> BootedTree:
        try:
            wait_until(self._is_up, "the tree's systemd", timeout_s=60, describe=self._boot_log)
        except BaseException:
            self._end()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.run("systemctl", "poweroff", "--force", check=False)
        try:
            self._nspawn.wait(30)
        except subprocess.TimeoutExpired:
            self._end()
        self._log.close()
        self._lock.close()

    def words(self, *command: str) -> list[str]:
        """The host's command line for a command of the tree."""
        return ["nsenter", "--target", str(self._init_pid), "--all", *ENVIRONMENT, *command]

    def run(
        self, *command: str, check: bool = True, timeout_s: float = 120.0
    ) -> subprocess.CompletedProcess[str]:
        """Run it as root in the tree. Raises AssertionError with its words when ``check`` and it fails."""
        done = subprocess.run(
            self.words(*command), capture_output=True, text=True, timeout=timeout_s, check=False
        )
        assert not check or done.returncode == 0, f"{command}: {done.stdout[-2000:]}{done.stderr[-2000:]}"
        return done

    def path(self, inside: str) -> Path:
        """The host's path of a file of the running tree."""
        return Path(f"/proc/{self._init_pid}/root{inside}")

    def write(self, inside: str, text: str, mode: int = 0o644) -> None:
        path = self.path(inside)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        path.chmod(mode)

    def _is_up(self) -> bool:
        assert self._nspawn.poll() is None, self._boot_log()
        for pid in _children(self._nspawn.pid):
            self._init_pid = pid
            said = self.run("systemctl", "is-system-running", check=False).stdout.strip()
            return said in {"running", "degraded"}
        return False

    def _boot_log(self) -> str:
        return (PLACE / "boot.log").read_text(errors="replace")[-3000:]

    def _end(self) -> None:
        for pid in _children(self._nspawn.pid):
            os.kill(pid, signal.SIGKILL)
        self._nspawn.kill()
        self._nspawn.wait()


def _children(pid: int) -> Iterator[int]:
    yield from map(int, Path(f"/proc/{pid}/task/{pid}/children").read_text().split())


def _make_tree() -> None:
    if TREE.exists():
        return
    new = TREE.with_name("tree.new")
    shutil.rmtree(new, ignore_errors=True)
    _host("mmdebstrap", "--variant=minbase", f"--include={PACKAGES}", "bookworm", str(new))
    new.rename(TREE)


def _install() -> None:
    """Build in the tree, for its Python and its C library."""
    # A network with a certificate authority of its own: its users have these two.
    for place in ("etc/pip.conf", "etc/ssl/certs/ca-certificates.crt", "etc/resolv.conf"):
        if Path("/", place).exists():
            shutil.copy(Path("/", place), TREE / place)
    source = TREE / "src"
    stamp = TREE / "opt" / "installed"
    wanted = _hash_of_sources()
    if stamp.exists() and stamp.read_text() == wanted:
        return
    shutil.rmtree(source, ignore_errors=True)
    source.mkdir()
    ignore = shutil.ignore_patterns("*.so", "*.c", "__pycache__")
    for name in SOURCES:
        if (ROOT / name).is_dir():
            shutil.copytree(ROOT / name, source / name, ignore=ignore)
        else:
            shutil.copy(ROOT / name, source / name)
    _host("chroot", str(TREE), *ENVIRONMENT, "sh", "-c", INSTALL)
    stamp.write_text(wanted)


def _hash_of_sources() -> str:
    digest = hashlib.sha256()
    for name in SOURCES:
        for path in sorted((ROOT / name).rglob("*")) if (ROOT / name).is_dir() else [ROOT / name]:
            if path.suffix not in {".so", ".c", ".pyc"} and path.is_file():
                digest.update(f"{path.relative_to(ROOT)}\n".encode() + path.read_bytes())
    return digest.hexdigest()


def _host(*command: str) -> None:
    done = subprocess.run(command, capture_output=True, text=True, timeout=400, check=False)
    assert done.returncode == 0, f"{command[0]}: {done.stdout[-2000:]}{done.stderr[-3000:]}"
