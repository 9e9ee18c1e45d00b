"""``pip install`` as a user runs it: the wheels of the three distributions, built from the files of this tree and
installed where there is no compiler."""

from __future__ import annotations

import re
import subprocess
import sys
import sysconfig
import tarfile
import tomllib
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from client_stub import __version__
from sidecar.tools.testing.fake_broker import FakeBroker
from sidecar.tools.testing.waiting import wait_until

ROOT = Path(__file__).parents[2]
STUB_BYTES_MAX = 3_100_000
"""Installed, with Python's compiled files."""

pytestmark = pytest.mark.process


@pytest.fixture(scope="module")
def wheels(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the three wheels, and of the source distributions of stub and daemon."""
    folder = tmp_path_factory.mktemp("wheels")
    run(sys.executable, str(ROOT / "deploy/packages/distributions.py"), str(folder / "projects"))
    for project in sorted((folder / "projects").iterdir()):
        pip("wheel", "--no-deps", "--no-build-isolation", "--wheel-dir", str(folder), str(project))
    build = "import sys; from setuptools import build_meta; build_meta.build_sdist(sys.argv[1])"
    for project in ("kafka-sidecar", "kafka-sidecar-daemon"):
        run(sys.executable, "-c", build, str(folder), cwd=folder / "projects" / project)
    return folder


class Installation:
    """A venv without pip, compiler or this tree. The packages that ours depend on are those of the tests."""

    def __init__(self, folder: Path) -> None:
        run(sys.executable, "-m", "venv", "--without-pip", str(folder))
        self.python = folder / "bin" / "python"
        self.site = folder / "lib" / f"python{sysconfig.get_python_version()}" / "site-packages"
        (self.site / "dependencies.pth").write_text(sysconfig.get_path("purelib") + "\n")
        (folder / "no-compiler").mkdir()
        self.environment = {"PATH": f"{folder}/bin:{folder}/no-compiler", "HOME": str(folder)}

    def install(self, *wheels: Path) -> None:
        pip("--python", str(self.python), "install", "--no-deps", "--no-index", *map(str, wheels))

    def installed_bytes(self, distribution: str) -> int:
        (record,) = self.site.glob(f"{distribution.replace('-', '_')}-*.dist-info/RECORD")
        names = [line.split(",")[0] for line in record.read_text().splitlines()]
        return sum((self.site / name).stat().st_size for name in names)

    def run(self, *words: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            words, env=self.environment, cwd="/", capture_output=True, text=True, timeout=60, check=False
        )

    def command(self, *words: str) -> subprocess.CompletedProcess[str]:
        return self.run(str(self.python.parent / "kafka-sidecar"), *words)


@pytest.fixture(scope="module")
def stub_only(wheels: Path, tmp_path_factory: pytest.TempPathFactory) -> Installation:
    made = Installation(tmp_path_factory.mktemp("stub") / "venv")
    made.install(wheel(wheels, "kafka-sidecar"))
    return made


@pytest.fixture(scope="module")
def with_daemon(wheels: Path, tmp_path_factory: pytest.TempPathFactory) -> Installation:
    made = Installation(tmp_path_factory.mktemp("daemon") / "venv")
    made.install(wheel(wheels, "kafka-sidecar"), wheel(wheels, "kafka-sidecar-daemon"))
    return made


def run(*words: str, cwd: Path | None = None) -> None:
    done = subprocess.run(words, cwd=cwd, capture_output=True, text=True, timeout=280, check=False)
    assert done.returncode == 0, done.stdout[-1000:] + done.stderr[-3000:]


def pip(*words: str) -> None:
    run(sys.executable, "-m", "pip", "--disable-pip-version-check", "--quiet", *words)


def wheel(folder: Path, name: str) -> Path:
    (found,) = folder.glob(f"{name.replace('-', '_')}-{__version__}-*.whl")
    return found


def names_in(folder: Path, name: str) -> set[str]:
    return set(zipfile.ZipFile(wheel(folder, name)).namelist())


def requirements(folder: Path, name: str) -> list[str]:
    archive = zipfile.ZipFile(wheel(folder, name))
    (metadata,) = (each for each in archive.namelist() if each.endswith("METADATA"))
    lines = archive.read(metadata).decode().splitlines()
    return [line.removeprefix("Requires-Dist: ") for line in lines if line.startswith("Requires-Dist:")]


def test_each_package_is_in_one_distribution(wheels: Path) -> None:
    stub, daemon, tools = (
        {name for name in names_in(wheels, f"kafka-sidecar{part}") if ".dist-info/" not in name}
        for part in ("", "-daemon", "-tools")
    )
    assert not stub & daemon
    assert not daemon & tools
    assert not any(
        name.startswith("tests/") or name.endswith((".pyx", ".pxi", ".c")) for name in stub | daemon | tools
    )
    assert not any(name.startswith("sidecar/") for name in stub)
    assert not any(name.startswith("sidecar/tools/") for name in daemon)
    assert all(name.startswith("sidecar/tools/") for name in tools)
    assert {"client_stub/py.typed", "pyspark_kafka_sidecar/__init__.py", "client_stub/command.py"} <= stub
    assert {"sidecar/__main__.py", "sidecar/worker/__main__.py", "sidecar/py.typed"} <= daemon
    assert {"sidecar/tools/testing/kafka_pom.xml", "sidecar/tools/bench/main.py"} <= tools
    python_files = {
        str(path.relative_to(ROOT))
        for folder in ("client_stub", "pyspark_kafka_sidecar", "sidecar")
        for path in (ROOT / folder).rglob("*.py")
    }
    assert python_files <= stub | daemon | tools, "nothing is left out"


def test_the_stub_needs_msgpack_alone_and_extras_lead_to_the_rest(wheels: Path) -> None:
    """Executors and web workers install the base."""
    stub = requirements(wheels, "kafka-sidecar")
    assert [each.split(">")[0] for each in stub if "extra ==" not in each] == ["msgpack"]
    assert f'kafka-sidecar-daemon=={__version__}; extra == "daemon"' in stub
    assert f'kafka-sidecar-tools=={__version__}; extra == "demo"' in stub
    assert f"kafka-sidecar=={__version__}" in requirements(wheels, "kafka-sidecar-daemon")


def test_every_extra_of_a_clone_is_one_of_the_wheel(wheels: Path) -> None:
    """pip only warns about an extra that is not there, and installs less than a page promised."""
    stub = "\n".join(requirements(wheels, "kafka-sidecar"))
    has = set(re.findall(r'extra == "(\w+)"', stub))
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert has == project["optional-dependencies"].keys()
    pages = [ROOT / "README.md", *(ROOT / "docs").rglob("*.md"), *(ROOT / "deploy").rglob("*.md")]
    promised = {
        name
        for page in pages
        for names in re.findall(r"kafka-sidecar\[([\w,]+)\]", page.read_text())
        for name in names.split(",")
    }
    assert {"daemon", "spark"} <= promised <= has


def test_a_stub_is_small_and_compiled_and_says_how_to_get_the_daemon(stub_only: Installation) -> None:
    size = stub_only.installed_bytes("kafka-sidecar")
    print(f"the stub installed: {size:,} bytes")
    assert size <= STUB_BYTES_MAX
    done = stub_only.run(
        str(stub_only.python), "-c", "import client_stub.native._native, pyspark_kafka_sidecar"
    )
    assert done.returncode == 0, done.stderr
    shown = stub_only.command("status")
    assert (shown.returncode, shown.stdout) == (1, "")
    assert shown.stderr.endswith("pip install 'kafka-sidecar[daemon]'.\n")
    assert shown.stderr.count("\n") == 1


def test_the_stub_s_source_is_not_installed_without_a_compiler(
    wheels: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where there is no wheel: pip fails, and installs no stub that could not be imported."""
    (source,) = wheels.glob("kafka_sidecar-*.tar.gz")
    (tmp_path / "no-compiler").mkdir()
    monkeypatch.setenv("PATH", str(tmp_path / "no-compiler"))
    monkeypatch.setenv("CC", "no-such-compiler")
    with pytest.raises(AssertionError, match="no-such-compiler"):
        pip("wheel", "--no-deps", "--no-build-isolation", "--wheel-dir", str(tmp_path), str(source))
    assert not list(tmp_path.glob("*.whl"))


def test_a_daemon_from_wheels_delivers(with_daemon: Installation, tmp_path: Path) -> None:
    """Without a compiler, and without this tree: in a folder of its own."""
    print(f"the daemon installed: {with_daemon.installed_bytes('kafka-sidecar-daemon'):,} bytes")
    assert with_daemon.command("--version").stdout == f"kafka-sidecar, version {__version__}\n"
    run_dir = f"--run-dir={tmp_path}/r"
    with FakeBroker({"orders": 1}) as kafka:
        servers = f"bootstrap.servers={kafka.bootstrap_servers}"
        with (tmp_path / "log").open("wb") as log:
            daemon = subprocess.Popen(
                [
                    *(str(with_daemon.python.parent / "kafka-sidecar"), "run", run_dir, "-X", servers),
                    *("-X", "http.listen=", "-X", "daemon.workers=1", "-X", "buffer.memory=16777216"),
                ],
                env=with_daemon.environment,
                cwd="/",
                stderr=log,
            )
        try:
            wait_until(
                lambda: with_daemon.command("status", run_dir).returncode == 0, "the daemon", interval_s=0.2
            )
            send = (
                "from client_stub import Producer\n"
                f"with Producer({str(tmp_path / 'r')!r}) as p: p.send('orders', b'x').result(20)"
            )
            done = with_daemon.run(str(with_daemon.python), "-c", send)
            assert done.returncode == 0, done.stderr
            assert len(kafka.records("orders")) == 1
            shown = with_daemon.command("chaos")
            assert shown.returncode == 1
            assert "pip install 'kafka-sidecar[demo]'" in shown.stderr
        finally:
            daemon.terminate()
            status = daemon.wait(30)
    assert status == 0, (tmp_path / "log").read_text()


def test_a_missing_kernel_is_one_true_sentence(
    with_daemon: Installation, wheels: Path, tmp_path: Path
) -> None:
    made = Installation(tmp_path / "venv")
    made.install(wheel(wheels, "kafka-sidecar"), wheel(wheels, "kafka-sidecar-daemon"))
    (kernel,) = (made.site / "sidecar" / "kernel").glob("_kernel.*.so")
    kernel.unlink()
    shown = made.command("run", f"--run-dir={tmp_path}/r", "-X", "bootstrap.servers=127.0.0.1:1")
    assert shown.returncode == 1
    said = shown.stderr.splitlines()[-1]
    assert said.startswith("The daemon is not completely installed. The compiled kernel is missing")
    assert "circular" not in shown.stderr
    assert shown.stderr.count("compiled kernel") == 1
    kernel.write_bytes(b"no library")
    shown = made.command("run", f"--run-dir={tmp_path}/r", "-X", "bootstrap.servers=127.0.0.1:1")
    assert f"The compiled kernel {kernel} cannot be loaded" in shown.stderr


@pytest.fixture
def readme(wheels: Path) -> Iterator[str]:
    archive = zipfile.ZipFile(wheel(wheels, "kafka-sidecar"))
    (metadata,) = (each for each in archive.namelist() if each.endswith("METADATA"))
    yield archive.read(metadata).decode()


def test_a_package_page_has_links_that_work_there(readme: str) -> None:
    links = re.findall(r"\]\(([^)]+)\)", readme)
    assert len(links) > 10, "they are found"
    assert all(link.startswith(("https://", "#")) for link in links)
    inside = [link.split("/blob/main/")[1].split("#")[0] for link in links if "/blob/main/" in link]
    assert all((ROOT / path).exists() for path in inside)
    assert len(re.findall("^Project-URL: ", readme, re.MULTILINE)) >= 4


def test_the_source_distribution_has_docs_tests_and_deployment(wheels: Path) -> None:
    (path,) = wheels.glob("kafka_sidecar_daemon-*.tar.gz")
    with tarfile.open(path) as archive:
        names = {name.split("/", 1)[1] for name in archive.getnames() if "/" in name}
    for name in (
        *(
            "docs/operations.md",
            "docs/images/throughput.png",
            "tests/conftest.py",
            "deploy/sidecar.example.toml",
        ),
        *(
            "sidecar/kernel/_kernel.pyx",
            "sidecar/kernel/entry.pxi",
            "LICENSE",
            "deploy/systemd/kafka-sidecar.service",
        ),
    ):
        assert name in names, name
