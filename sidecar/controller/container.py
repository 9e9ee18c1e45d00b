"""Container: whether this process runs in one, and whether the pool goes with it.

A container's own files go when it is replaced, its /dev/shm already when it is killed. What was accepted and not yet
delivered goes with them, so the daemon says it at its start.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from sidecar.shm.mounts import Mount, mount_of, read_mounts

_MARKS: Final = (Path("/.dockerenv"), Path("/run/.containerenv"))
"""Of Docker and of Podman."""
_ENGINES: Final = {"docker", "oci", "podman"}
"""Of the variable ``container``. An nspawn or LXC container is a host to its services: nobody replaces it."""
_LAYERS: Final = re.compile(r"(?:upper|lower)dir=[^,]*/(?:containers|containerd|docker|io\.containerd)[^,]*")
"""Of an overlay's options: its layers belong to an engine (containerd alone leaves no other mark)."""
_NAMELESS: Final = re.compile(r"/volumes/[0-9a-f]{64}/_data")
"""Root of a volume that an engine made for VOLUME of an image: the next container gets another."""
_INITIAL_IPC: Final = 0xEFFFFFFF
"""Inode of the host's IPC namespace (PROC_IPC_INIT_INO of the kernel): /dev/shm is the host's there."""


def is_in_container(mounts: list[Mount], environment: Mapping[str, str]) -> bool:
    """True in a container of Docker, Podman, containerd or Kubernetes."""
    return (
        any(mark.exists() for mark in _MARKS)
        or environment.get("container") in _ENGINES
        or "KUBERNETES_SERVICE_HOST" in environment
        or any(each.point == Path("/") and _LAYERS.search(each.options) for each in mounts)
    )


def goes_with_container(mount: Mount, environment: Mapping[str, str], *, is_host_ipc: bool) -> str:
    """Where a pool on ``mount`` is, when it is gone with its container; empty when it stays.

    Gone are the container's root, a /dev/shm that the engine made, a tmpfs of the container, and a volume without a
    name. Named volumes and directories of the host stay. Two mistakes are possible: a whole tmpfs of the host mounted
    elsewhere than at /dev/shm looks like ``--tmpfs``, and Compose gives a nameless volume to the next container too.
    """
    if mount.point == Path("/"):
        return "in the container's own file system"
    if _NAMELESS.search(mount.root):
        return "on a volume without a name"
    if mount.kind != "tmpfs" or mount.root != "/":
        return ""
    if mount.point == Path("/dev/shm"):
        # Engines name their own one "shm"; the host's, mounted as a volume, has the host's name.
        return "in the container's own /dev/shm" if mount.source == "shm" and not is_host_ipc else ""
    # In a pod every tmpfs is a volume (emptyDir with medium Memory): it stays as long as its pod.
    return (
        "" if "KUBERNETES_SERVICE_HOST" in environment else f"on the container's own tmpfs at {mount.point}"
    )


def pool_warning(pool_path: str) -> str:
    """The sentence for a pool that will not outlive its container; empty for any other.

    ``pool_path``: setting pool.path; empty for the default in /dev/shm.
    """
    mounts = read_mounts()
    if not is_in_container(mounts, os.environ):
        return ""
    path = Path(pool_path or "/dev/shm/pool")
    is_host_ipc = Path("/proc/self/ns/ipc").stat().st_ino == _INITIAL_IPC
    where = goes_with_container(mount_of(path, mounts), os.environ, is_host_ipc=is_host_ipc)
    if not where:
        return ""
    return (
        f"The pool of accepted records ({pool_path or '/dev/shm'}) is {where}, so records that are not delivered yet "
        "are lost when the container is killed or replaced: set pool.path to a file on a named volume."
    )
