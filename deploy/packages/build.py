"""A deb or an rpm of the daemon: everything in /opt/kafka-sidecar, beside the system's Python.

``python deploy/packages/build.py deb|rpm... FOLDER [--revision N]...`` with the Python whose minor version the system's
has; what is built of several kinds or revisions has the same contents.
The wheels of this tree and their packages are installed below /opt/kafka-sidecar, with the unit of deploy/systemd, and
deploy/sidecar.example.toml as the configuration. Needs pip and a package index; dpkg-deb or rpmbuild.
"""

from __future__ import annotations

import argparse
import os
import platform
import shutil
import subprocess
import sys
import tempfile
import textwrap
import tomllib
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
sys.path.insert(0, str(HERE))

from distributions import write_all  # noqa: E402

PREFIX = "opt/kafka-sidecar"
PYTHON = f"python{sys.version_info.major}.{sys.version_info.minor}"
CONFIGURATION = "/etc/kafka-sidecar/sidecar.toml"
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
ABOUT = "One warm Kafka producer for all processes of a host: nothing accepted is lost."
COMMAND = f"""#!/{PREFIX}/bin/python
from client_stub.command import main

main()
"""
ENVIRONMENT = f"""home = /usr/bin
include-system-site-packages = false
executable = /usr/bin/{PYTHON}
"""
FILES = {
    "deploy/systemd/kafka-sidecar.service": "usr/lib/systemd/system/kafka-sidecar.service",
    "deploy/systemd/kafka-sidecar.sysusers.conf": "usr/lib/sysusers.d/kafka-sidecar.conf",
    "deploy/systemd/kafka-sidecar.tmpfiles.conf": "usr/lib/tmpfiles.d/kafka-sidecar.conf",
    "deploy/systemd/credentials.conf": "usr/share/doc/kafka-sidecar/credentials.conf",
    "deploy/sidecar.example.toml": CONFIGURATION.lstrip("/"),
    "LICENSE": "usr/share/doc/kafka-sidecar/copyright",
    "README.md": "usr/share/doc/kafka-sidecar/README.md",
    "docs/operations.md": "usr/share/doc/kafka-sidecar/operations.md",
}


def stage(root: Path) -> None:
    """The package's files below ``root``, as they will lie below /."""
    site = root / PREFIX / "lib" / PYTHON / "site-packages"
    site.mkdir(parents=True)
    with tempfile.TemporaryDirectory(prefix="kafka-sidecar-") as folder:
        wheels = Path(folder) / "wheels"
        stub, daemon, _ = write_all(Path(folder))
        # An environment that has what a build needs fetches nothing for it.
        here = ["--no-build-isolation"] if find_spec("Cython") and find_spec("setuptools") else []
        for project in (stub, daemon):
            _pip("wheel", "--no-deps", *here, "--wheel-dir", str(wheels), str(project))
        found = [str(path) for path in wheels.glob("*.whl")]
        _pip("install", "--no-compile", "--target", str(site), *found)
    shutil.rmtree(site / "bin", ignore_errors=True)
    # Compiled once, here: no file appears below /opt that the package does not own. By hash, so that no time counts.
    compiling = (
        "-m",
        "compileall",
        "-q",
        "-s",
        str(root),
        "-p",
        "/",
        "--invalidation-mode",
        "unchecked-hash",
    )
    _run(sys.executable, *compiling, str(site))
    place = root / PREFIX / "bin"
    place.mkdir()
    (place / "python").symlink_to(f"/usr/bin/{PYTHON}")
    (root / PREFIX / "pyvenv.cfg").write_text(ENVIRONMENT)
    (place / "kafka-sidecar").write_text(COMMAND)
    (place / "kafka-sidecar").chmod(0o755)
    (root / "usr/bin").mkdir(parents=True)
    (root / "usr/bin/kafka-sidecar").symlink_to(f"/{PREFIX}/bin/kafka-sidecar")
    for source, target in FILES.items():
        (root / target).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / source, root / target)
        (root / target).chmod(0o644)


def deb(root: Path, folder: Path, revision: int, *, is_plain: bool) -> Path:
    """The deb of the files that are staged below ``root``."""
    architecture = {"x86_64": "amd64", "aarch64": "arm64"}[platform.machine()]
    minor = sys.version_info.minor
    kib = sum(path.lstat().st_size for path in root.rglob("*")) // 1024
    control = root / "DEBIAN"
    control.mkdir()
    try:
        (control / "control").write_text(
            textwrap.dedent(f"""\
                Package: kafka-sidecar
                Version: {PROJECT["version"]}-{revision}
                Architecture: {architecture}
                Maintainer: The kafka-sidecar authors <kafka-sidecar@localhost>
                Installed-Size: {kib}
                Depends: {PYTHON}, python3 (>= 3.{minor}~), python3 (<< 3.{minor + 1}), libc6, adduser | systemd
                Section: net
                Priority: optional
                Homepage: {PROJECT["urls"]["Homepage"]}
                Description: {ABOUT.rstrip(".")}
                 A daemon owns metadata, connections and records under way. Programs hold a thin stub that
                 hands records over and gets an answer for each. The stub is a package of Python of its own.
            """)
        )
        (control / "conffiles").write_text(f"{CONFIGURATION}\n")
        for name, text in (
            ("postinst", f'[ "$1" = configure ] || exit 0\n{_script("after-install")}'),
            ("prerm", f'[ "$1" = remove ] || exit 0\n{_script("before-removal")}'),
            ("postrm", f'[ "$1" = purge ] || exit 0\n{_script("after-purge")}'),
        ):
            (control / name).write_text(f"#!/bin/sh\n{text}")
            (control / name).chmod(0o755)
        made = folder / f"kafka-sidecar_{PROJECT['version']}-{revision}_{architecture}.deb"
        with _beside(folder) as work:
            compression = f"-Z{'none' if is_plain else 'xz'}"
            _run("dpkg-deb", "--root-owner-group", compression, "--build", str(root), str(work / made.name))
            (work / made.name).replace(made)
    finally:
        shutil.rmtree(control)
    return made


def rpm(root: Path, folder: Path, revision: int, *, is_plain: bool) -> Path:
    """The rpm of the files that are staged below ``root``."""
    with _beside(folder) as work:
        spec = work / "kafka-sidecar.spec"
        spec.write_text(spec_of(root, revision))
        places = [f"--define=_{name} {work}/{name}" for name in ("topdir", "builddir", "tmppath")]
        _run(
            "rpmbuild",
            "-bb",
            *places,
            f"--define=_rpmdir {work}/made",
            "--define=staged " + str(root),
            *(["--define=_binary_payload w0.gzdio"] if is_plain else []),
            str(spec),
        )
        (whole,) = work.glob("made/*/*.rpm")
        made = folder / whole.relative_to(work / "made")
        made.parent.mkdir(exist_ok=True)
        whole.replace(made)
    return made


@contextmanager
def _beside(folder: Path) -> Iterator[Path]:
    """A place on the disk of ``folder`` where a package grows: it gets its name there only once it is whole."""
    with tempfile.TemporaryDirectory(prefix=".kafka-sidecar-", dir=folder) as work:
        yield Path(work)


def spec_of(root: Path, revision: int) -> str:
    """Nothing is built by rpmbuild: it packs what is staged. $1 of its scripts counts the versions that are left."""
    owned = "\n".join(
        f"{'%config(noreplace) ' if path == CONFIGURATION else ''}{path}"
        for path in sorted(
            [f"/{PREFIX}", "/usr/bin/kafka-sidecar", *(f"/{target}" for target in FILES.values())]
        )
    )
    return "\n".join(
        [
            "%global __brp_python_bytecompile %{nil}",
            "%global __brp_mangle_shebangs %{nil}",
            "%global debug_package %{nil}",
            "Name: kafka-sidecar",
            f"Version: {PROJECT['version']}",
            f"Release: {revision}",
            f"Summary: {ABOUT.rstrip('.')}",
            f"License: {PROJECT['license']}",
            f"URL: {PROJECT['urls']['Homepage']}",
            "AutoReqProv: no",
            f"Requires: {PYTHON}, glibc, shadow-utils",
            "%description",
            "A daemon owns metadata, connections and records under way. Programs hold a thin stub.",
            "%install",
            "mkdir -p %{buildroot}",
            "cp -a %{staged}/. %{buildroot}/",
            "%post",
            _script("after-install"),
            "%preun",
            f'[ "$1" = 0 ] || exit 0\n{_script("before-removal")}',
            "%files",
            owned,
            "",
        ]
    )


def _script(name: str) -> str:
    return (HERE / "scripts" / f"{name}.sh").read_text().removeprefix("#!/bin/sh\n")


def _pip(*words: str) -> None:
    _run(sys.executable, "-m", "pip", "--disable-pip-version-check", "--quiet", *words)


def _run(*words: str) -> None:
    done = subprocess.run(
        words, capture_output=True, text=True, check=False, env={**os.environ, "PYTHONWARNINGS": "ignore"}
    )
    if done.returncode:
        raise SystemExit(f"{' '.join(words[:4])} failed:\n{done.stdout}{done.stderr}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("kinds", nargs="+", choices=("deb", "rpm"))
    parser.add_argument("folder", type=Path)
    parser.add_argument("--revision", type=int, action="append", help="may be repeated [default: 1]")
    parser.add_argument(
        "--uncompressed", action="store_true", help="for a trial: saves minutes of a busy CPU"
    )
    arguments = parser.parse_args()
    target_folder = arguments.folder.absolute()
    target_folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="kafka-sidecar-") as staged_in:
        staged = Path(staged_in) / "root"
        stage(staged)
        for each in arguments.revision or [1]:
            for kind in arguments.kinds:
                print(
                    {"deb": deb, "rpm": rpm}[kind](
                        staged, target_folder, each, is_plain=arguments.uncompressed
                    )
                )
