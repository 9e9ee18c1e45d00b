"""What tests need beside Python, and the Debian package that brings it: a test without it is skipped in one form of
words, which the end of ``make test`` counts (``tests/skipped_tests.py``).
"""

from __future__ import annotations

import os
import shutil
from typing import Final

import pytest

from sidecar.tools.testing.browser import find_browser
from sidecar.tools.testing.schema_registry import registry_home
from sidecar.tools.testing.spark_formats import format_jars

PACKAGES: Final = {
    "bash": "bash",
    "buildah": "buildah",
    "chromium": "chromium",
    "chroot": "coreutils",
    "crun": "crun",
    "dpkg-deb": "dpkg",
    "fish": "fish",
    "helm": "no package: https://helm.sh",
    "mmdebstrap": "mmdebstrap",
    "nsenter": "util-linux",
    "podman": "podman",
    "promtool": "prometheus",
    "readelf": "binutils",
    "rpmbuild": "rpm",
    "schema-registry": "no package: Maven Central, by make test",
    "spark-avro": "no package: Maven Central, by make test",
    "spark-protobuf": "no package: Maven Central, by make test",
    "systemd-analyze": "systemd",
    "systemd-nspawn": "systemd-container",
    "unshare": "util-linux",
    "zsh": "zsh",
}
ROOT_USER: Final = "root"
REGISTRY: Final = "schema-registry"
SPARK: Final = "spark-"
"""Before the name of a format of Spark."""


def lacks(*tools: str) -> str:
    """Why a test is skipped that needs these tools, or ``ROOT_USER``; "" if they are here."""
    absent = [
        tool if tool == ROOT_USER else f"{tool} (Debian: {PACKAGES[tool]})"
        for tool in tools
        if not _is_here(tool)
    ]
    return f"needs {', '.join(absent)}" if absent else ""


def needs(*tools: str) -> pytest.MarkDecorator:
    """Mark of a test that needs these tools, or ``ROOT_USER``."""
    reason = lacks(*tools)
    return pytest.mark.skipif(bool(reason), reason=reason)


def _is_here(tool: str) -> bool:
    if tool == ROOT_USER:
        return os.geteuid() == 0
    if tool == REGISTRY:
        return registry_home().is_dir()
    if tool.startswith(SPARK):
        return format_jars(tool.removeprefix(SPARK)).is_dir()
    return (find_browser() if tool == "chromium" else shutil.which(tool)) is not None
