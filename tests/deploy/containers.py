"""Containers without an engine: an image built by buildah on a base made by mmdebstrap, run by podman and crun.

Everything lies in ``.demo/containers`` of the clone. The base stands in for python:3.11-slim-bookworm, which only a
registry has: Debian 12 with its own Python 3.11.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import shutil
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from tests.tools import ROOT_USER

ROOT: Final = Path(__file__).resolve().parents[2]
PLACE: Final = ROOT / ".demo" / "containers"
BASE: Final = "docker.io/library/python:3.11-slim-bookworm"
IMAGE: Final = "localhost/kafka-sidecar:test"
NEEDED: Final = (ROOT_USER, "buildah", "podman", "crun", "mmdebstrap", "unshare")
PACKAGES: Final = "python3,python3-venv,python3-dev,python-is-python3,ca-certificates"
_PRIVATE: Final = (
    "mount --make-rprivate /; "
    # crun takes cgroups of version 1 or 2, not both.
    "! mountpoint -q /sys/fs/cgroup/unified || umount /sys/fs/cgroup/unified; "
    'exec "$@"'
)


class Containers:
    """buildah and podman on a store of their own. One per test session; not thread-safe."""

    def __init__(self) -> None:
        PLACE.mkdir(parents=True, exist_ok=True)
        self._lock = (PLACE / "lock").open("w")
        fcntl.flock(self._lock, fcntl.LOCK_EX)  # two sessions would remove each other's containers
        # Podman's store remembers the place; AF_UNIX paths under it end at 107 bytes.
        self._run_root = Path(f"/tmp/ks-podman-{hashlib.sha256(str(PLACE).encode()).hexdigest()[:8]}")
        self._run_root.mkdir(mode=0o700, exist_ok=True)
        self._store = ["--root", str(PLACE / "storage"), "--runroot", str(self._run_root)]
        self._running: dict[str, subprocess.Popen[str]] = {}

    def close(self) -> None:
        """Kill and remove every container and volume of this session; images stay for the next one."""
        for name in list(self._running):
            self.kill(name)
        self.podman("volume", "prune", "--force")
        shutil.rmtree(self._run_root, ignore_errors=True)
        self._lock.close()

    # ---- images

    def buildah(self, *words: str, timeout_s: float = 300.0) -> str:
        return _run(["buildah", *self._store, *words], timeout_s, {"BUILDAH_ISOLATION": "chroot"})

    def base(self) -> None:
        """Make the base image, once for all sessions. About a minute."""
        tree = PLACE / "base.tar"
        if not tree.exists():
            made = tree.with_suffix(".new.tar")
            _run(["mmdebstrap", "--variant=minbase", f"--include={PACKAGES}", "bookworm", str(made)], 300.0)
            made.rename(tree)
        if BASE not in self.buildah("images", "--format", "{{.Name}}:{{.Tag}}").split():
            scratch = self.buildah("from", "scratch").strip()
            self.buildah("add", scratch, str(tree), "/")
            path = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
            self.buildah("config", "--env", f"PATH={path}", scratch)
            self.buildah("commit", "--quiet", "--rm", scratch, BASE)

    def build(self) -> float:
        """Build the Dockerfile. Returns the seconds that it took, the base not counted."""
        self.base()
        # A network with a certificate authority of its own: its users have these two.
        own = [
            word
            for place in ("/etc/pip.conf", "/etc/ssl/certs")
            if Path(place).exists()
            for word in ("--volume", f"{place}:{place}:ro")
        ]
        begun_s = time.monotonic()
        self.buildah(
            "bud", "--format", "docker", "--pull=never", "--layers=false", *own, "--tag", IMAGE, str(ROOT)
        )
        return time.monotonic() - begun_s

    def inspect(self, image: str) -> dict[str, Any]:
        found: list[dict[str, Any]] = json.loads(self.podman("image", "inspect", image))
        return found[0]

    # ---- containers

    def podman(self, *words: str, timeout_s: float = 60.0) -> str:
        return _run([*self._command(), *words], timeout_s)

    def words(self, name: str, *options: str) -> list[str]:
        """The command line that runs a container of the image in the foreground, up to what runs in it.

        Least rights, the host's network, a limit of open files that this process may give.
        """
        limits = ["--ulimit", "nofile=16384:16384", "--ulimit", "nproc=4096:4096"]
        closed = ["--read-only", "--cap-drop", "all", "--security-opt", "no-new-privileges"]
        return [*self._command(), "run", "--rm", "--name", name, *closed, *limits, *options]

    def start(self, name: str, *words: str, options: Sequence[str] = ()) -> Path:
        """Run a container of the image; returns the file of its log."""
        log = self._run_root / f"{name}.log"
        with log.open("a") as out:
            self._running[name] = subprocess.Popen(
                [*self.words(name, *options), IMAGE, *words], stdout=out, stderr=subprocess.STDOUT, text=True
            )
        return log

    def execute(self, name: str, *words: str) -> subprocess.CompletedProcess[str]:
        command = [*self._command(), "exec", name, *words]
        return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)

    def kill(self, name: str) -> None:
        """SIGKILL to all of it, and wait until it is removed."""
        process = self._running.pop(name)
        subprocess.run([*self._command(), "kill", name], capture_output=True, timeout=60, check=False)
        process.wait(60)

    def stop(self, name: str) -> int:
        """As an engine stops it: STOPSIGNAL, and time to drain. Returns its exit status."""
        process = self._running.pop(name)
        self.podman("stop", "--time", "60", name, timeout_s=90)
        return process.wait(60)

    def _command(self) -> list[str]:
        return [
            "unshare",
            "--mount",
            "sh",
            "-c",
            _PRIVATE,
            "sh",
            "podman",
            *self._store,
            "--cgroup-manager=cgroupfs",
        ]


def _run(command: list[str], timeout_s: float, environment: dict[str, str] | None = None) -> str:
    done = subprocess.run(
        command,
        capture_output=True,
        text=True,
        timeout=timeout_s,
        check=False,
        env={**os.environ, **(environment or {})},
    )
    assert done.returncode == 0, f"{' '.join(command)}:\n{done.stdout[-2000:]}{done.stderr[-3000:]}"
    return done.stdout
