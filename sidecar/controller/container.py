"""Container: whether this process runs in a container, and whether the pool is lost with it.

The files of a container are lost when it is replaced, and its /dev/shm as soon as it is killed. Accepted records that
are not delivered would be lost with them, so the daemon warns at its start.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from sidecar.shm.mounts import Mount, mount_of, read_mounts

_MARKS: Final = (Path("/.dockerenv"), Path("/run/.containerenv"))
"""The files that Docker and Podman create."""
_ENGINES: Final = {"docker", "oci", "podman"}
"""Values of the variable ``container``. An nspawn or LXC container is like a host to its services: it is not
replaced.
"""
_LAYERS: Final = re.compile(r"(?:upper|lower)dir=[^,]*/(?:containers|containerd|docker|io\.containerd)[^,]*")
"""Found in an overlay's options when its layers belong to an engine (containerd alone leaves no other sign)."""
_NAMELESS: Final = re.compile(r"/volumes/[0-9a-f]{64}/_data")
"""The root of a volume that an engine made for VOLUME of an image: the next container gets another one."""
_INITIAL_IPC: Final = 0xEFFFFFFF
"""The inode of the host's IPC namespace (PROC_IPC_INIT_INO of the kernel); there /dev/shm is the host's."""


def is_in_container(mounts: list[Mount], environment: Mapping[str, str]) -> bool:
    """True in a container of Docker, Podman, containerd or Kubernetes."""
    return (
        any(mark.exists() for mark in _MARKS)
        or environment.get("container") in _ENGINES
        or "KUBERNETES_SERVICE_HOST" in environment
        or any(each.point == Path("/") and _LAYERS.search(each.options) for each in mounts)
    )


def ends_with_container(mount: Mount, environment: Mapping[str, str], *, is_host_ipc: bool) -> str:
    """The place of a pool on ``mount`` as a phrase, if it is lost with its container; empty if it survives.

    Lost are the container's root, a /dev/shm that the engine made, a tmpfs of the container, and a volume without a
    name. Named volumes and directories of the host survive. Two mistakes are possible: a tmpfs of the host that is
    mounted elsewhere than at /dev/shm looks like ``--tmpfs``, and Compose gives a nameless volume to the next
    container, too.
    """
    if mount.point == Path("/"):
        return "in the container's own file system"
    if _NAMELESS.search(mount.root):
        return "on a volume without a name"
    if mount.kind != "tmpfs" or mount.root != "/":
        return ""
    if mount.point == Path("/dev/shm"):
        # An engine's own tmpfs is named "shm"; the host's, mounted as a volume, has the host's name.
        return "in the container's own /dev/shm" if mount.source == "shm" and not is_host_ipc else ""
    # In a pod every tmpfs is a volume (emptyDir with medium Memory), which lives as long as its pod.
    return (
        "" if "KUBERNETES_SERVICE_HOST" in environment else f"on the container's own tmpfs at {mount.point}"
    )


def pool_warning(pool_path: str) -> str:
    """A warning for a pool that will be lost with its container; empty for any other.

    ``pool_path``: the setting pool.path; empty for the default in /dev/shm.
    """
    mounts = read_mounts()
    if not is_in_container(mounts, os.environ):
        return ""
    path = Path(pool_path or "/dev/shm/pool")
    is_host_ipc = Path("/proc/self/ns/ipc").stat().st_ino == _INITIAL_IPC
    where = ends_with_container(mount_of(path, mounts), os.environ, is_host_ipc=is_host_ipc)
    if not where:
        return ""
    return (
        f"The pool of accepted records ({pool_path or '/dev/shm'}) is {where}, so records that are not delivered yet "
        "are lost when the container is killed or replaced: set pool.path to a file on a named volume."
    )
