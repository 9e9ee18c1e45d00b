"""Goal: the daemon says when its pool goes with its container, and says nothing where it stays.

The lines are what Podman 4.3 with crun gave; those of Kubernetes and Docker have the same form.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from sidecar.controller import container
from sidecar.controller.container import ends_with_container, is_in_container, pool_warning
from sidecar.shm.mounts import mount_of, read_mounts

LAYERS = "/var/lib/containers/storage/overlay"
ROOT = f"94 70 0:40 / / rw,relatime - overlay overlay rw,lowerdir={LAYERS}/l/3G:{LAYERS}/l/XX,upperdir={LAYERS}/6a"
OWN_SHM = "103 96 0:39 / /dev/shm rw,nosuid,nodev,noexec,relatime - tmpfs shm rw,size=64000k"
HOST_SHM = "100 93 0:27 / /dev/shm rw,nosuid,nodev,noexec,relatime - tmpfs tmpfs rw,size=24684100k"
TMPFS = "117 94 0:47 / /var/lib/x rw,nosuid,nodev,relatime - tmpfs tmpfs rw"
FOLDER_OF_HOST_TMPFS = "117 94 0:27 /pools /var/lib/x rw,relatime - tmpfs tmpfs rw"
VOLUMES = "/var/lib/containers/storage/volumes"
NAMED = f"116 94 254:0 {VOLUMES}/state/_data /var/lib/x rw,relatime - ext4 /dev/vda rw"
NAMELESS = f"116 94 254:0 {VOLUMES}/{'5c' * 32}/_data /var/lib/x rw,relatime - ext4 /dev/vda rw"
HOST_PATH = "116 94 254:0 /srv/kafka-sidecar /var/lib/x rw,relatime - ext4 /dev/vda rw"
HOST_ROOT = "22 1 254:0 / / rw,relatime shared:1 - ext4 /dev/vda rw"
LIVE_ROOT = "22 1 0:20 / / rw - overlay overlay rw,lowerdir=/run/live/rootfs,upperdir=/run/live/overlay/rw"


@pytest.mark.parametrize(
    ("line", "environment", "is_host_ipc", "where"),
    [
        (ROOT, {}, False, "in the container's own file system"),
        (OWN_SHM, {}, False, "in the container's own /dev/shm"),
        (OWN_SHM, {}, True, ""),
        (HOST_SHM, {}, True, ""),
        (HOST_SHM, {}, False, ""),
        (TMPFS, {}, False, "on the container's own tmpfs at /var/lib/x"),
        (TMPFS, {"KUBERNETES_SERVICE_HOST": "10.0.0.1"}, False, ""),
        (FOLDER_OF_HOST_TMPFS, {}, False, ""),
        (NAMED, {}, False, ""),
        (NAMELESS, {}, False, "on a volume without a name"),
        (HOST_PATH, {}, False, ""),
    ],
)
def test_files_that_end_with_a_container(
    line: str, environment: dict[str, str], is_host_ipc: bool, where: str
) -> None:
    (mount,) = read_mounts(line)
    assert ends_with_container(mount, environment, is_host_ipc=is_host_ipc) == where


@pytest.mark.parametrize(
    ("root", "environment", "is_one"),
    [
        (ROOT, {}, True),
        (HOST_ROOT, {}, False),
        (LIVE_ROOT, {}, False),
        (HOST_ROOT, {"container": "podman"}, True),
        (HOST_ROOT, {"container": "systemd-nspawn"}, False),
        (HOST_ROOT, {"KUBERNETES_SERVICE_HOST": "10.0.0.1"}, True),
    ],
)
def test_a_container_is_recognised(
    root: str, environment: dict[str, str], is_one: bool, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(container, "_MARKS", (tmp_path / "mark",))
    assert is_in_container(read_mounts(root), environment) is is_one
    (tmp_path / "mark").touch()
    assert is_in_container(read_mounts(root), environment)


def test_the_longest_mount_counts_and_of_two_over_one_place_the_later(tmp_path: Path) -> None:
    folder = tmp_path / "a b"
    folder.mkdir()
    octal = str(folder).replace(" ", "\\040")
    mounts = read_mounts(
        f"{HOST_ROOT}\n30 22 0:9 / {octal} rw - tmpfs one rw\n31 22 0:9 / {octal} rw - tmpfs two rw\n"
        f"32 22 0:9 / {tmp_path} rw - ext4 above rw\n"
    )
    assert mount_of(folder / "not yet" / "there", mounts).source == "two"
    assert mount_of(tmp_path / "file", mounts).source == "above"
    assert mount_of(Path("/elsewhere"), mounts).source == "/dev/vda"


def test_the_sentence_names_the_setting_and_only_in_a_container(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(container, "_MARKS", (Path("/dev/null"),))
    monkeypatch.setattr(container, "read_mounts", lambda: read_mounts(f"{ROOT}\n{OWN_SHM}"))
    monkeypatch.setattr(container, "_INITIAL_IPC", -1)
    assert pool_warning("") == (
        "The pool of accepted records (/dev/shm) is in the container's own /dev/shm, so records that are not "
        "delivered yet are lost when the container is killed or replaced: set pool.path to a file on a named volume."
    )
    assert "(/srv/pool) is in the container's own file system" in pool_warning("/srv/pool")
    monkeypatch.setattr(container, "_MARKS", ())
    monkeypatch.setattr(container, "read_mounts", lambda: read_mounts(HOST_ROOT))
    monkeypatch.delenv("container", raising=False)
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
    assert pool_warning("") == ""
