"""The files that users copy: they must load, and agree with each other."""

from __future__ import annotations

import re
from pathlib import Path

from sidecar.controller.config_loader import load_config
from sidecar.testing.kafka_jars import kafka_version

ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "deploy"


def test_example_configuration_loads() -> None:
    config = load_config(DEPLOY / "sidecar.example.toml", environment={})
    assert config.values["bootstrap.servers"]
    assert config.values["http.listen"] == "0.0.0.0:9464"


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


def test_image_builds_from_files_that_exist() -> None:
    for line in (ROOT / "Dockerfile").read_text().splitlines():
        if line.startswith("COPY ") and "--from" not in line:
            for name in line.split()[1:-1]:
                assert (ROOT / name).exists(), name
    assert "USER kafka-sidecar" in (ROOT / "Dockerfile").read_text()
