"""``[topics."PATTERN"]``: read in order, checked like the settings of all topics, told with their pattern."""

from __future__ import annotations

from pathlib import Path

import pytest

from sidecar.cli.config import to_toml
from sidecar.common.settings import ConfigError, SidecarConfig
from sidecar.controller.config_loader import load_config

SERVERS = "bootstrap.servers=localhost:9092"
FILE = """
[topics."zz-*"]
acks = 0
compression.type = "lz4"
[topics.audit]
"linger.ms" = 200
rate = 1_000_000
[topics."*"]
partitioner = "round_robin"
records.per.second = 10
"""


def load(tmp_path: Path, text: str = "", *overrides: str) -> SidecarConfig:
    file = tmp_path / "sidecar.toml"
    file.write_text(text)
    return load_config(file, [SERVERS, *overrides], {})


def faults(tmp_path: Path, text: str = "", *overrides: str) -> list[str]:
    with pytest.raises(ConfigError) as refused:
        load(tmp_path, text, *overrides)
    return refused.value.sentences


def test_tables_keep_the_order_of_the_file(tmp_path: Path) -> None:
    config = load(tmp_path, FILE, 'topics."late.*".batch.size=7', "topics.audit.linger.ms=300")
    assert list(config.topics.items()) == [
        ("zz-*", {"acks": 0, "compression.type": "lz4"}),
        ("audit", {"linger.ms": 300, "rate": 1_000_000}),
        ("*", {"partitioner": "round_robin", "records.per.second": 10}),
        ("late.*", {"batch.size": 7}),
    ]
    assert list(config.to_mapping()["topics"]) == ["zz-*", "audit", "*", "late.*"]  # type: ignore[call-overload]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ('[topics."a*"]\nack = 1', ['topics."a*".ack', 'did you mean "acks"?']),
        ('[topics."a*"]\nlinger = 1', ['did you mean "linger.ms"?']),
        ('[topics."a*"]\nbuffer.memory = 1', ["one for all topics, in [kafka]"]),
        ('[topics."a*"]\nacks = 2', ["one of all, -1, 0, 1"]),
        ('[topics."a*"]\nrate = 0', ['topics."a*".rate = 0', "at least 1"]),
        ('[topics."a*"]\ncompression.gzip.level = 0', ["1 … 9"]),
        ('[topics."a*"]\npartitioner = "sticky"', ["round_robin"]),
        ('[topics."a*"]\ndelivery.timeout.ms = 30004', ['topics."a*"', "30005"]),
        ('[kafka]\ndelivery.timeout.ms = 40000\n[topics."a*"]\nlinger.ms = 10001', ["40000", "40001"]),
        ("[topics]\nacks = 1", ["write [topics."]),
        ("[topic.a]\nacks = 1", ["did you mean [topics]?"]),
    ],
)
def test_each_fault_names_the_pattern(tmp_path: Path, text: str, words: list[str]) -> None:
    (sentence,) = faults(tmp_path, text)
    assert all(word in sentence for word in words), sentence


def test_what_show_prints_can_be_loaded_again(tmp_path: Path) -> None:
    config = load(tmp_path, FILE, 'topics."all".acks=all')
    assert load(tmp_path, to_toml(config)).topics == config.topics


def test_a_variable_names_its_pattern(tmp_path: Path) -> None:
    file = tmp_path / "sidecar.toml"
    file.write_text("")
    variables = {"KAFKA_SIDECAR__TOPICS__AUDIT__COMPRESSION_TYPE": "gzip"}
    assert load_config(file, [SERVERS], variables).topics == {"audit": {"compression.type": "gzip"}}


def test_a_default_deadline_is_raised_for_the_pattern_that_lingers_longer(tmp_path: Path) -> None:
    config = load(tmp_path, '[topics."a*"]\nlinger.ms = 200_000')
    assert config.topics["a*"]["delivery.timeout.ms"] == 230_000
    assert config.values["delivery.timeout.ms"] == 120_000
    assert '"a*"' in config.warnings[0]


def test_all_of_acks_without_idempotence_is_warned_about(tmp_path: Path) -> None:
    config = load(tmp_path, '[kafka]\nacks = 1\n[topics."a*"]\nacks = "all"')
    assert config.topics["a*"]["acks"] == -1
    assert "without idempotence" in config.warnings[0]
    assert load(tmp_path, '[kafka]\nenable.idempotence = true\n[topics."a*"]\nacks = 1').warnings == ()
