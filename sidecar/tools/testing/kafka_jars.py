"""The jars of the embedded Apache Kafka: resolved once from Maven Central into ``.demo/``."""

from __future__ import annotations

import fcntl
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Mapping
from importlib import resources
from pathlib import Path
from typing import Final

RELEASES: Final = {"3.9": "3.9.2", "4.1": "4.1.2"}
"""Further release lines that tests run against, with the version used for each. The pom names the usual one."""

SAY_S: Final = 20.0
"""From one line about a download to the next."""


class KafkaUnavailable(RuntimeError):
    """The embedded broker is not available here; the message is one sentence that names the package to install."""


def cache_dir() -> Path:
    """Return the folder of all downloads.

    ``KAFKA_SIDECAR_DEMO_DIR`` if set, else ``.demo/`` of the clone, else (installed from a wheel) the user's cache
    folder.
    """
    configured = os.environ.get("KAFKA_SIDECAR_DEMO_DIR")
    if configured:
        return Path(configured)
    root = Path(__file__).resolve().parents[3]
    if (root / "pyproject.toml").is_file():
        return root / ".demo"
    return Path(os.environ.get("XDG_CACHE_HOME", str(Path.home() / ".cache"))) / "kafka-sidecar"


def kafka_version(wanted: str | None = None) -> str:
    """Return the full version for ``wanted``: a release line ("3.9"), a full version, or None for the pom's.

    Raises ValueError for an unknown line.
    """
    usual = _usual_version()
    if wanted is None or usual.startswith(f"{wanted}."):
        return usual
    if re.fullmatch(r"\d+\.\d+\.\d+", wanted):
        return wanted
    if wanted not in RELEASES:
        known = ", ".join(sorted([*RELEASES, usual.rpartition(".")[0]]))
        raise ValueError(f"Kafka version {wanted!r} is not known: give one of {known}, or a full version.")
    return RELEASES[wanted]


def _usual_version() -> str:
    match = re.search(r"<kafka\.version>([^<]+)<", _pom_text())
    assert match is not None, "kafka_pom.xml names no kafka.version"
    return match.group(1)


def java_command() -> str:
    """Return the path of a ``java`` of version 17 or later; raises KafkaUnavailable naming the Debian package."""
    home = os.environ.get("JAVA_HOME")
    java = str(Path(home) / "bin" / "java") if home else shutil.which("java")
    if java is None or not Path(java).is_file():
        raise KafkaUnavailable(
            "No Java found: install a JDK 17 (Debian: apt-get install openjdk-17-jdk-headless)."
        )
    shown = subprocess.run([java, "-version"], capture_output=True, text=True, check=False)
    match = re.search(r'version "(\d+)', shown.stderr)
    if match is None or int(match.group(1)) < 17:
        raise KafkaUnavailable(
            f"{java} is too old for Apache Kafka 4: install a JDK 17 "
            "(Debian: apt-get install openjdk-17-jdk-headless)."
        )
    return java


def check_available() -> None:
    """Raise KafkaUnavailable where resolve_jars() or a broker would; nothing is downloaded."""
    java_command()
    if not (cache_dir() / f"kafka-{kafka_version()}").is_dir():
        _maven_command("the Kafka jars")


def _maven_command(what: str) -> str:
    maven = shutil.which("mvn")
    if maven is None:
        raise KafkaUnavailable(f"No Maven found: it downloads {what} (Debian: apt-get install maven).")
    return maven


def resolve_jars(version: str | None = None) -> Path:
    """Return the folder with the broker's jars of this version, downloading them the first time.

    Has the guarantees of :func:`fetch_jars`. Raises KafkaUnavailable with one sentence.
    """
    wanted = kafka_version(version)
    return fetch_jars(f"kafka-{wanted}", _pom_text(), {"kafka.version": wanted}, "the Kafka jars")


def archive_of(jars: Path) -> Path:
    """Return the path of the shared class archive for a folder of jars; whether or not it exists."""
    return jars.with_name(f"{jars.name}.jsa")


def fetch_jars(folder: str, pom_text: str, properties: Mapping[str, str], what: str) -> Path:
    """Return ``folder`` of the cache with the runtime dependencies of a pom, downloading them the first time.

    Two processes may do it at once (a file lock). The folder gets its name only when it is complete, so a download
    that was cut short leaves no partial folder. Raises KafkaUnavailable with one sentence.
    """
    target = cache_dir() / folder
    if target.is_dir():
        return target
    maven = _maven_command(what)
    java_command()
    target.parent.mkdir(parents=True, exist_ok=True)
    with (target.parent / "kafka-jars.lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            _say(f"Another process downloads jars to {target.parent}: waiting for it.")
            fcntl.flock(lock, fcntl.LOCK_EX)
        if target.is_dir():
            return target
        partial = target.with_name(f"{target.name}.partial")
        shutil.rmtree(partial, ignore_errors=True)
        partial.mkdir()
        pom = partial / "pom.xml"
        pom.write_text(pom_text)
        status, said = _run(
            what,
            [
                maven,
                "--batch-mode",
                "--quiet",
                "-Dstyle.color=never",
                "--file",
                str(pom),
                *(f"-D{name}={value}" for name, value in properties.items()),
                "dependency:copy-dependencies",
                "-DincludeScope=runtime",
                f"-DoutputDirectory={partial}",
            ],
        )
        if status != 0:
            shutil.rmtree(partial)
            reason = next((line for line in said.splitlines() if "ERROR" in line), said.strip())
            raise KafkaUnavailable(f"Maven could not fetch {what} (it needs Maven Central): {reason}")
        partial.rename(target)
    return target


def _run(what: str, command: list[str]) -> tuple[int, str]:
    """(exit status, output) of Maven, which says nothing itself for a minute or more."""
    began = time.monotonic()
    _say(f"Maven downloads {what}: only once, and for a minute or more.")
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as maven:
        while True:
            try:
                said, _ = maven.communicate(timeout=SAY_S)
            except subprocess.TimeoutExpired:
                _say(f"Maven downloads {what}, for {time.monotonic() - began:.0f} s so far.")
            except BaseException:
                maven.kill()
                raise
            else:
                return maven.returncode, said


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def _pom_text() -> str:
    return resources.files("sidecar.tools.testing").joinpath("kafka_pom.xml").read_text()


if __name__ == "__main__":
    print(resolve_jars(sys.argv[1] if len(sys.argv) > 1 else None))
