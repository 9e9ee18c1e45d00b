"""The files that users copy: they must load, and agree with each other."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from sidecar.config.loader import load_config
from sidecar.tools.testing.kafka_jars import kafka_version

yaml = pytest.importorskip("yaml")  # of the [dev] extra; an older environment of a clone lacks it

ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "deploy"
DOCKERFILE = (ROOT / "Dockerfile").read_text()


def test_example_configuration_loads() -> None:
    config = load_config(DEPLOY / "sidecar.example.toml", environment={})
    assert config.values["bootstrap.servers"]
    # Whatever else is on the host's networks: a container's variables open it where its port is published.
    assert config.values["http.listen"] == "127.0.0.1:9464"


def test_one_metrics_port_everywhere() -> None:
    for path in (
        ROOT / "Dockerfile",
        DEPLOY / "docker" / "compose.yaml",
        DEPLOY / "prometheus" / "prometheus.yml",
    ):
        assert re.findall(r"\b94\d\d\b", path.read_text()) and set(
            re.findall(r"\b94\d\d\b", path.read_text())
        ) == {"9464"}, path


def test_one_kafka_version_everywhere() -> None:
    assert f"apache/kafka:{kafka_version()}" in (DEPLOY / "docker" / "compose.yaml").read_text()


def test_stop_waits_longer_than_the_drain() -> None:
    """systemd and Docker must not kill what is still delivering."""
    drain = float(
        str(load_config(DEPLOY / "sidecar.example.toml", environment={}).values["daemon.shutdown_timeout_s"])
    )
    unit = (DEPLOY / "systemd" / "kafka-sidecar.service").read_text()
    compose = (DEPLOY / "docker" / "compose.yaml").read_text()
    for pattern, text in ((r"TimeoutStopSec=(\d+)", unit), (r"stop_grace_period: (\d+)s", compose)):
        found = re.search(pattern, text)
        assert found is not None
        assert float(found.group(1)) > drain


def dockerfile() -> list[list[str]]:
    """Instructions in order, each as its words; continued lines joined, comments left out."""
    text = "\n".join(line for line in DOCKERFILE.splitlines() if not line.lstrip().startswith("#"))
    return [line.split() for line in text.replace("\\\n", " ").splitlines() if line.strip()]


def of(instruction: str) -> list[list[str]]:
    return [words[1:] for words in dockerfile() if words[0] == instruction]


def test_image_builds_from_files_that_exist() -> None:
    """And .dockerignore, which lets nothing else through, lets them through."""
    let_through = {line[1:] for line in (ROOT / ".dockerignore").read_text().splitlines() if line[:1] == "!"}
    copied = {name for words in of("COPY") if not words[0].startswith("--from") for name in words[:-1]}
    assert copied == let_through
    for name in copied:
        assert (ROOT / name).exists(), name


def test_image_imports_what_it_has_built_and_not_the_sources_next_to_it() -> None:
    """The sources shadow the package in a build that runs `python -c` in their folder."""
    calls = [run for run in of("RUN") if any("import" in word for word in run)]
    assert calls and all("-I" in run for run in calls)


def test_image_runs_as_a_number_and_keeps_its_state_on_volumes() -> None:
    assert of("USER") == [["10001:10001"]]  # runAsNonRoot cannot be checked of a name
    volumes = {word.strip('[]",') for word in of("VOLUME")[0]}
    (variables,) = of("ENV")
    named = dict(word.split("=", 1) for word in variables)
    assert named["KAFKA_SIDECAR_RUN_DIR"] in volumes
    config = load_config(environment=named, overrides=["bootstrap.servers=kafka:9092"])
    for setting in ("pool.path", "dead_letters.path"):
        assert str(Path(config.text(setting)).parent) in volumes - {named["KAFKA_SIDECAR_RUN_DIR"]}
    (port,) = of("EXPOSE")
    assert config.text("http.listen") == f"0.0.0.0:{port[0]}"


def test_compose_keeps_what_the_image_keeps_on_named_volumes() -> None:
    compose = yaml.safe_load((DEPLOY / "docker" / "compose.yaml").read_text())
    mounted = dict(each.split(":")[:2][::-1] for each in compose["services"]["sidecar"]["volumes"])
    image_volumes = {word.strip('[]",') for word in of("VOLUME")[0]}
    assert {mounted[place] for place in image_volumes} <= set(compose["volumes"])
    words = compose["services"]["sidecar"]["command"]
    settings = [words[place + 1] for place, word in enumerate(words) if word == "-X"]
    assert not any(each.startswith(("pool.path", "dead_letters.path")) for each in settings)
