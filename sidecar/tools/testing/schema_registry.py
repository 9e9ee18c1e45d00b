"""A real schema registry for tests: Apicurio Registry, which speaks Confluent's API, with its storage in memory.

``python -m sidecar.tools.testing.schema_registry`` fetches it (142 MB); where Maven Central does not give it, its tests
are skipped.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import tarfile
import urllib.error
import urllib.request
from importlib import resources
from pathlib import Path
from types import TracebackType
from typing import Final, Self

from sidecar.tools.testing.child_processes import dying_with_parent
from sidecar.tools.testing.kafka_cluster import free_ports
from sidecar.tools.testing.kafka_jars import KafkaUnavailable, cache_dir, fetch_jars, java_command
from sidecar.tools.testing.waiting import wait_until

VERSION: Final = "2.6.13.Final"
"""The newest one that runs on Java 17, and whose archive Maven resolves."""
POM: Final = "schema_registry_pom.xml"
API: Final = "apis/ccompat/v7"
START_S: Final = 180.0
REQUEST_S: Final = 10.0


def registry_home() -> Path:
    """Its folder; there is none before it was fetched."""
    return cache_dir() / f"schema-registry-{VERSION}" / "app"


def fetch_registry() -> Path:
    """As registry_home(), downloaded the first time. Raises KafkaUnavailable."""
    home = registry_home()
    if home.is_dir():
        return home
    pom = resources.files("sidecar.tools.testing").joinpath(POM).read_text()
    folder = fetch_jars(home.parent.name, pom, {"registry.version": VERSION}, "Apicurio Registry")
    partial = home.with_name("app.partial")
    shutil.rmtree(partial, ignore_errors=True)
    for archive in folder.glob("*.tar.gz"):
        with tarfile.open(archive) as opened:
            opened.extractall(partial, filter="data")
        archive.unlink()
    partial.rename(home)
    return home


class SchemaRegistry:
    """One running registry; all is forgotten at its end."""

    def __init__(self, folder: Path) -> None:
        """``folder`` gets its log."""
        (self._port,) = free_ports(1)
        self._log = folder / "schema-registry.log"
        self._process: subprocess.Popen[bytes] | None = None
        self.url = f"http://127.0.0.1:{self._port}/{API}"

    def __enter__(self) -> Self:
        home = fetch_registry()
        jar = next(home.glob("*-runner.jar"))
        options = {
            "quarkus.http.host": "127.0.0.1",
            "quarkus.http.port": self._port,
            "quarkus.log.level": "WARN",
        }
        command = [java_command(), "-Xmx256m", "-XX:TieredStopAtLevel=1"]
        command += [f"-D{name}={value}" for name, value in options.items()]
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(
                dying_with_parent([*command, "-jar", str(jar)]), cwd=home, stdout=log, stderr=log
            )
        wait_until(self._answers, "the schema registry", timeout_s=START_S)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._process is not None
        self._process.kill()
        self._process.wait()

    def _answers(self) -> bool:
        assert self._process is not None
        if self._process.poll() is not None:
            raise RuntimeError(f"the schema registry has ended: {self._log.read_text()[-2000:]}")
        try:
            with urllib.request.urlopen(f"{self.url}/subjects", timeout=REQUEST_S):
                return True
        except (urllib.error.URLError, OSError):
            return False


def main() -> None:
    try:
        fetch_registry()
    except KafkaUnavailable as error:
        print(f"{error} Its tests are skipped.", file=sys.stderr)


if __name__ == "__main__":
    main()
