"""What a user gets from ``pip install``: a wheel built from the files of the working tree."""

from __future__ import annotations

import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SOURCES = ("pyproject.toml", "README.md", "LICENSE", "sidecar", "client_stub", "pyspark_kafka_sidecar")


pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> zipfile.ZipFile:
    """Built in a copy: a build leaves C files, objects and egg-info where it runs."""
    folder = tmp_path_factory.mktemp("wheel")
    source = folder / "source"
    source.mkdir()
    ignore = shutil.ignore_patterns("*.so", "*.c", "__pycache__", "*.egg-info")
    for name in SOURCES:
        if (ROOT / name).is_dir():
            shutil.copytree(ROOT / name, source / name, ignore=ignore)
        else:
            shutil.copy(ROOT / name, source / name)
    done = subprocess.run(
        [
            sys.executable,
            "-m",
            "pip",
            "--disable-pip-version-check",
            "wheel",
            "--quiet",
            "--no-deps",
            "--no-build-isolation",
            "--wheel-dir",
            str(folder),
            str(source),
        ],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    (built,) = folder.glob("kafka_sidecar-*.whl")
    return zipfile.ZipFile(built)


def test_wheel_has_everything_that_runs(wheel: zipfile.ZipFile) -> None:
    names = set(wheel.namelist())
    assert any(name.startswith("sidecar/kernel/_kernel.") and name.endswith(".so") for name in names)
    assert any(name.startswith("client_stub/_native.") and name.endswith(".so") for name in names)
    for name in (
        "client_stub/__init__.py",
        "client_stub/py.typed",
        "pyspark_kafka_sidecar/__init__.py",
        "sidecar/__main__.py",
        "sidecar/worker/__main__.py",
        "sidecar/testing/kafka_pom.xml",
    ):
        assert name in names
    assert not any(name.startswith("tests/") for name in names)


def test_wheel_starts_the_console_script(wheel: zipfile.ZipFile) -> None:
    (entry,) = (name for name in wheel.namelist() if name.endswith("entry_points.txt"))
    assert "kafka-sidecar = sidecar.__main__:main" in wheel.read(entry).decode()


def test_base_install_is_the_thin_stub(wheel: zipfile.ZipFile) -> None:
    """Executors and web workers install the base: msgpack, nothing else."""
    (metadata,) = (name for name in wheel.namelist() if name.endswith("METADATA"))
    needed = [
        line.removeprefix("Requires-Dist: ").split(";")[0].split(">")[0].strip()
        for line in wheel.read(metadata).decode().splitlines()
        if line.startswith("Requires-Dist:") and "extra ==" not in line
    ]
    assert needed == ["msgpack"]
