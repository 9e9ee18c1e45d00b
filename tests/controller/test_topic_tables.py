"""``[topics."PATTERN"]``: read in order, checked like the settings of all topics, told with their pattern."""

from __future__ import annotations

import itertools
from fnmatch import fnmatchcase
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sidecar.cli.config import to_toml
from sidecar.config.loader import load_config
from sidecar.config.settings import ConfigError, SidecarConfig
from sidecar.config.topic_patterns import overlap

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


def test_the_output_of_config_show_can_be_loaded(tmp_path: Path) -> None:
    config = load(tmp_path, FILE, 'topics."all".acks=all')
    assert load(tmp_path, to_toml(config)).topics == config.topics


def test_a_variable_names_its_pattern(tmp_path: Path) -> None:
    file = tmp_path / "sidecar.toml"
    file.write_text("")
    variables = {"KAFKA_SIDECAR__TOPICS__audit__COMPRESSION_TYPE": "gzip"}
    assert load_config(file, [SERVERS], variables).topics == {"audit": {"compression.type": "gzip"}}


def from_variables(tmp_path: Path, text: str = "", **variables: str) -> SidecarConfig:
    file = tmp_path / "sidecar.toml"
    file.write_text(text)
    return load_config(
        file, [SERVERS], {f"KAFKA_SIDECAR__{name}": value for name, value in variables.items()}
    )


def test_names_in_variables_keep_their_case_and_their_underscores(tmp_path: Path) -> None:
    config = from_variables(
        tmp_path,
        TOPICS__Orders__LINGER_MS="7",
        topics____my__own__linger_ms="8",
        CLIENTS__Billing_EU__TOKEN="secret",
        **{"TOPICS__Audit.v1-eu__ACKS": "1"},
    )
    assert config.topics == {
        "Orders": {"linger.ms": 7},
        "__my__own": {"linger.ms": 8},
        "Audit.v1-eu": {"acks": 1},
    }
    assert config.clients == {"Billing_EU": {"token": "secret"}}
    assert config.warnings == ()


def test_a_name_all_in_upper_case_is_warned_about(tmp_path: Path) -> None:
    config = from_variables(tmp_path, TOPICS__AUDIT__LINGER_MS="7")
    assert list(config.topics) == ["AUDIT"]
    (warning,) = config.warnings
    assert "KAFKA_SIDECAR__TOPICS__AUDIT__LINGER_MS is for the name AUDIT" in warning


def test_variables_have_no_order_so_names_come_first_and_globs_must_not_meet(tmp_path: Path) -> None:
    variables = {"TOPICS__a*__LINGER_MS": "1", "TOPICS__abc__LINGER_MS": "2", "TOPICS__b*__LINGER_MS": "3"}
    config = from_variables(tmp_path, '[topics.file]\n"linger.ms" = 4', **variables)
    assert list(config.topics) == ["file", "abc", "a*", "b*"]
    with pytest.raises(ConfigError) as refused:
        from_variables(tmp_path, "", **variables, **{"TOPICS__*c__ACKS": "1"})
    assert [sentence for sentence in refused.value.sentences if "variables have no order" in sentence] == [
        'The variables for topics."*c" and topics."a*" may match the same topic, and the first table counts, but '
        "variables have no order: put these tables into the file.",
        'The variables for topics."*c" and topics."b*" may match the same topic, and the first table counts, but '
        "variables have no order: put these tables into the file.",
    ]
    assert from_variables(
        tmp_path, '[topics."*c"]\n"linger.ms" = 4\n[topics."a*"]\nacks = 1', **{"TOPICS__*c__ACKS": "0"}
    ).topics == {"*c": {"linger.ms": 4, "acks": 0}, "a*": {"acks": 1}}, "the file has given them their order"


def test_two_variables_for_one_setting_are_refused(tmp_path: Path) -> None:
    with pytest.raises(
        ConfigError, match=r"KAFKA__LINGER_MS and KAFKA_SIDECAR__kafka__linger_ms both set linger\.ms"
    ):
        from_variables(tmp_path, KAFKA__LINGER_MS="1", kafka__linger_ms="2")


@pytest.mark.parametrize(
    ("text", "pattern", "earlier"),
    [
        ('[topics."a*"]\nacks = 1\n[topics.abc]\nacks = 0', "abc", "a*"),
        ('[topics."*"]\nacks = 1\n[topics."a?"]\nacks = 0', "a?", "*"),
    ],
)
def test_a_table_that_can_never_be_the_first_is_warned_about(
    tmp_path: Path, text: str, pattern: str, earlier: str
) -> None:
    (warning,) = load(tmp_path, text).warnings
    assert warning.startswith(f'topics."{pattern}" has no effect: topics."{earlier}" precedes it')
    assert (
        load(tmp_path, '[topics."[ab]*"]\nacks = 1\n[topics."a*"]\nacks = 1\n[topics.c]\nacks = 0').warnings
        == ()
    )


patterns = st.text(alphabet="ab*?", max_size=6)


@given(patterns, patterns, st.lists(st.text(alphabet="ab", max_size=5), max_size=30))
@settings(deadline=None)
def test_patterns_that_match_the_same_name_overlap(one: str, other: str, names: list[str]) -> None:
    if any(fnmatchcase(name, one) and fnmatchcase(name, other) for name in names):
        assert overlap(one, other)


@given(patterns, patterns)
@settings(deadline=None, max_examples=40)
def test_patterns_that_overlap_match_a_name_in_common(one: str, other: str) -> None:
    names = ("".join(letters) for length in range(11) for letters in itertools.product("ab", repeat=length))
    if overlap(one, other):
        assert any(fnmatchcase(name, one) and fnmatchcase(name, other) for name in names)


@pytest.mark.parametrize(("one", "other", "may"), [
    ("a[bc]", "ab", True), ("a[bc]", "bb", False), ("*-eu", "orders-*", True), ("a*b", "a*c", False),
    ("*" * 500 + "a", "b" + "*" * 500, True), ("a" * 3_000, "a" * 2_999 + "?", True),
])  # fmt: skip
def test_overlaps_by_example(one: str, other: str, may: bool) -> None:
    assert overlap(one, other) is may


def test_a_default_deadline_is_raised_for_the_pattern_that_lingers_longer(tmp_path: Path) -> None:
    config = load(tmp_path, '[topics."a*"]\nlinger.ms = 200_000')
    assert config.topics["a*"]["delivery.timeout.ms"] == 230_000
    assert config.values["delivery.timeout.ms"] == 120_000
    assert '"a*"' in config.warnings[0]


def test_all_of_acks_without_idempotence_is_warned_about(tmp_path: Path) -> None:
    config = load(tmp_path, '[kafka]\nacks = 1\nenable.idempotence = false\n[topics."a*"]\nacks = "all"')
    assert config.topics["a*"]["acks"] == -1
    (warning,) = config.warnings
    assert "without idempotence" in warning
    assert load(tmp_path, '[kafka]\nenable.idempotence = true\n[topics."a*"]\nacks = 1').warnings == ()
