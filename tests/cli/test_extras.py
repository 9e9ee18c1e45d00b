"""Goal: what a command needs is looked for before anything is started, and named in one sentence."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import NoReturn

import pytest
from click.testing import CliRunner, Result

from sidecar.cli.main import cli


def run(*words: str) -> Result:
    return CliRunner().invoke(cli, words)


@pytest.fixture
def nothing_starts(monkeypatch: pytest.MonkeyPatch) -> None:
    import sidecar.tools.bench.main
    import sidecar.tools.chaos.main
    import sidecar.tools.demo.main

    def refuse(*_: object, **__: object) -> NoReturn:
        raise AssertionError("it was started")

    monkeypatch.setattr(sidecar.tools.bench.main, "run_bench", refuse)
    monkeypatch.setattr(sidecar.tools.chaos.main, "run_chaos", refuse)
    monkeypatch.setattr(sidecar.tools.demo.main, "run_demo", refuse)


ANYWHERE = "--bootstrap-servers=127.0.0.1:1"


@pytest.mark.usefixtures("nothing_starts")
@pytest.mark.parametrize(
    ("words", "modules", "named", "extra"),
    [
        (("produce", "t", "f.parquet"), ["pyarrow"], "pyarrow is", "arrow"),
        (("produce", "t", "-", "--format", "parquet"), ["pyarrow"], "pyarrow is", "arrow"),
        (("chaos",), ["confluent_kafka"], "confluent-kafka is", "demo"),
        (("chaos", ANYWHERE), ["sidecar.tools.chaos"], "kafka-sidecar-tools is", "demo"),
        (("demo",), ["pyspark", "confluent_kafka"], "confluent-kafka, pyspark are", "demo"),
        (("demo", "--mock"), ["confluent_kafka"], "confluent-kafka is", "demo"),
        # Of two that are missing in an environment of make quick, one would be named too many.
        pytest.param(("demo", ANYWHERE), ["pyarrow"], "pyarrow is", "demo", marks=pytest.mark.slow),
        (("bench",), ["pyspark"], "pyspark is", "demo"),
        (("bench", "--only", "sync"), ["confluent_kafka"], "confluent-kafka is", "demo"),
        (("bench", "--only", "kernel"), ["sidecar.tools.bench"], "kafka-sidecar-tools is", "demo"),
        (("bench", "--only", "kernel", "--plots", "p"), ["matplotlib"], "matplotlib is", "dev"),
        (("bench", "--only", "tls"), ["cryptography"], "cryptography is", "dev"),
        (("keygen", "k"), ["client_stub.zmtp.curve"], "tcp:// needs PyNaCl", "curve"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else None,
)
def test_a_missing_package_is_one_sentence_before_anything_starts(
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    words: tuple[str, ...],
    modules: list[str],
    named: str,
    extra: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("KAFKA_SIDECAR_RUN_DIR", str(tmp_path / "no-daemon"))
    for module in modules:
        monkeypatch.setitem(sys.modules, module, None)
    shown = run(*words)
    assert (shown.exit_code, shown.stdout) == (1, ""), shown.output
    assert named in shown.stderr and f"pip install 'kafka-sidecar[{extra}]'" in shown.stderr
    assert shown.stderr.count("\n") == 1, "one sentence"
    assert not [*tmp_path.iterdir()]


@pytest.mark.slow
@pytest.mark.usefixtures("nothing_starts")
@pytest.mark.parametrize(
    "words",
    [("demo",), ("demo", ANYWHERE), ("chaos",), ("bench",), ("bench", "--only", "tls")],
    ids=" ".join,
)
def test_without_java_nothing_starts(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, words: tuple[str, ...]
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("JAVA_HOME", raising=False)
    shown = run(*words)
    assert (shown.exit_code, shown.stdout) == (1, "")
    assert (
        "No Java found: install a JDK 17 (Debian: apt-get install openjdk-17-jdk-headless).\n" in shown.stderr
    )
    assert shown.stderr.count("\n") == 1


@pytest.mark.usefixtures("nothing_starts")
def test_without_maven_and_jars_nothing_starts(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    java = tmp_path / "java"
    java.write_text("#!/bin/sh\necho 'openjdk version \"17.0.1\"' >&2\n")
    java.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("KAFKA_SIDECAR_DEMO_DIR", str(tmp_path))
    shown = run("chaos")
    assert (shown.exit_code, shown.stderr) == (
        1,
        "The chaos run cannot start: No Maven found: it downloads the Kafka jars (Debian: apt-get install maven).\n",
    )


@pytest.mark.parametrize("words", [("bench", "--only", "kernel"), ("chaos", ANYWHERE), ("demo", "--mock")])
def test_commands_without_java_ask_for_none(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, words: tuple[str, ...]
) -> None:
    started: list[str] = []

    def start(*_: object, **__: object) -> int:
        started.append(words[0])
        raise SystemExit(0)

    module = f"sidecar.tools.{words[0]}.main.run_{words[0]}"
    monkeypatch.setattr(module, start)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("JAVA_HOME", raising=False)
    assert run(*words).exit_code == 0
    assert started == [words[0]]
