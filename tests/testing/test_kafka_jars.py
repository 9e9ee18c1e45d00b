"""Goal: a download of Kafka's jars is never silent, and one that breaks off leaves no folder."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import pytest

from sidecar.tools.testing import kafka_jars
from sidecar.tools.testing.kafka_jars import KafkaUnavailable, fetch_jars
from sidecar.tools.testing.waiting import wait_until

JAVA = "#!/bin/sh\necho 'openjdk version \"17.0.1\"' >&2\n"
MAVEN = """#!/bin/sh
for word; do case $word in -DoutputDirectory=*) folder=${word#*=};; esac; done
touch "$folder/half.jar"
until test -e "$GO"; do sleep 0.05; done
grep -q well "$GO" || { echo "[ERROR] no route to Maven Central"; exit 1; }
"""


@pytest.fixture
def go(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A file by whose contents Maven ends."""
    for name, text in (("java", JAVA), ("mvn", MAVEN)):
        (tmp_path / name).write_text(text)
        (tmp_path / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("KAFKA_SIDECAR_DEMO_DIR", str(tmp_path / "cache"))
    monkeypatch.setenv("GO", str(tmp_path / "go"))
    monkeypatch.setattr(kafka_jars, "SAY_S", 0.05)
    return tmp_path / "go"


def test_a_download_says_that_it_continues(go: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The first command of getting-started downloaded for 100 s without a word."""
    said = ""

    def has_said(text: str) -> bool:
        nonlocal said
        said += capsys.readouterr().err
        return text in said

    fetching = [
        threading.Thread(target=fetch_jars, args=("folder", "<pom/>", {}, "the jars")) for _ in range(2)
    ]
    fetching[0].start()
    wait_until(lambda: has_said("Maven downloads the jars, for "), "the second line")
    assert said.startswith("Maven downloads the jars: only once, and for a minute or more.\n")
    fetching[1].start()
    wait_until(lambda: has_said("Another process downloads jars to "), "the line of who waits")
    go.write_text("well")
    for each in fetching:
        each.join(20)
    capsys.readouterr()
    folder = kafka_jars.cache_dir() / "folder"
    assert (folder / "half.jar").is_file()
    assert fetch_jars("folder", "<pom/>", {}, "the jars") == folder and not capsys.readouterr().err


def test_a_download_that_fails_says_why_and_leaves_no_folder(go: Path) -> None:
    go.write_text("badly")
    with pytest.raises(KafkaUnavailable, match=r"could not fetch the jars .* no route to Maven Central"):
        fetch_jars("folder", "<pom/>", {}, "the jars")
    assert [path.name for path in kafka_jars.cache_dir().iterdir()] == ["kafka-jars.lock"]
