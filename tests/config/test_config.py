"""Goal: rows, sources and relations of the configuration; every fault in one sentence, all of them together."""

from __future__ import annotations

from pathlib import Path

import pytest

from sidecar.config.hints import OTHER_NAMES
from sidecar.config.loader import load_config
from sidecar.config.setting import ValueKind
from sidecar.config.settings import BY_NAME, SETTINGS, ConfigError, SidecarConfig, nearest

SERVERS = "bootstrap.servers=localhost:9092"


def load(
    *overrides: str, path: Path | None = None, environment: dict[str, str] | None = None
) -> SidecarConfig:
    return load_config(path, [SERVERS, *overrides], environment or {})


def faults(*overrides: str, path: Path | None = None) -> list[str]:
    with pytest.raises(ConfigError) as refused:
        load(*overrides, path=path)
    return refused.value.sentences


def test_defaults_are_those_of_kafka_4() -> None:
    config = load()
    assert config.values["acks"] == -1
    assert config.values["enable.idempotence"] is True
    expected = {
        "retries": 2_147_483_647,
        "max.in.flight.requests.per.connection": 5,
        "batch.size": 16_384,
        "linger.ms": 5,
        "max.request.size": 1_048_576,
        "max.block.ms": 60_000,
        "request.timeout.ms": 30_000,
        "delivery.timeout.ms": 120_000,
        "retry.backoff.ms": 100,
        "retry.backoff.max.ms": 1_000,
        "reconnect.backoff.ms": 50,
        "metadata.max.age.ms": 300_000,
        "connections.max.idle.ms": 540_000,
        "compression.type": "none",
    }
    assert {name: config.values[name] for name in expected} == expected
    # Ours: one pool for every process of the host, not one for each.
    assert config.values["buffer.memory"] == 128 << 20


@pytest.mark.parametrize(
    ("overrides", "idempotent"),
    [
        ((), True),
        (("acks=1",), False),
        (("acks=0",), False),
        (("retries=0",), False),
        (("enable.idempotence=false", "max.in.flight.requests.per.connection=6"), False),
        (("enable.idempotence=true",), True),
        (("acks=1", "max.in.flight.requests.per.connection=6"), False),
    ],
)
def test_idempotence_follows(overrides: tuple[str, ...], idempotent: bool) -> None:
    assert load(*overrides).values["enable.idempotence"] is idempotent


@pytest.mark.parametrize(
    ("overrides", "words"),
    [
        (
            ("max.in.flight.requests.per.connection=6",),
            ["max.in.flight.requests.per.connection = 6", "at most 5"],
        ),
        (("enable.idempotence=true", "acks=1"), ["acks = 1"]),
        (("enable.idempotence=true", "retries=0"), ["retries = 0"]),
        (
            ("enable.idempotence=true", "acks=0", "retries=0", "max.in.flight.requests.per.connection=6"),
            ["acks = 0", "retries = 0", "max.in.flight.requests.per.connection = 6"],
        ),
    ],
)
def test_idempotence_refuses_and_names_all_conflicts(overrides: tuple[str, ...], words: list[str]) -> None:
    (sentence,) = faults(*overrides)
    assert all(word in sentence for word in words)


def test_delivery_timeout_covers_linger_and_request() -> None:
    assert load("linger.ms=1000", "request.timeout.ms=130000").values["delivery.timeout.ms"] == 131_000
    (sentence,) = faults("delivery.timeout.ms=10")
    assert "30005" in sentence


@pytest.mark.parametrize(
    ("override", "words"),
    [
        ("linger.mss=1", 'did you mean "linger.ms"?'),
        ("linger_ms=1", 'did you mean "linger.ms"?'),
        ("daemon.worker=1", 'did you mean "daemon.workers"?'),
        ("workers=1", 'did you mean "daemon.workers"?'),
        ("zzz=1", "config show"),
        ("linger.ms=soon", 'linger.ms = "soon" (-X): must be a whole number, at least 0.'),
        ("linger.ms=-1", "at least 0"),
        ("acks=most", "one of all, -1, 0, 1"),
        ("enable.idempotence=perhaps", "true or false"),
        ("daemon.workers=65", "1 … 64"),
        ("daemon.shutdown_timeout_s=nan", "0 … 86400"),
        ("compression.type=rar", "one of none, gzip, snappy, lz4, zstd"),
        ("http.listen=9464", "host:port"),
        ("http.listen=localhost:70000", "host:port"),
        ("bootstrap.servers=kafka", 'has "kafka": must be host:port'),
        ("bootstrap.servers=", "bootstrap.servers is not set"),
        ("buffer.memory=1048576", "buffer.memory = 1048576 is too small"),
        ("daemon.request_buffers_bytes=1000000", "2 × max.request.size"),
        ("pool.page_bytes=5000", "power of two"),
        ("clients.billing.rate=1", "takes token"),
        ("nonsense", "must be key=value"),
        # Names and sizes that people bring.
        ("metadata.broker.list=a:1", "write bootstrap.servers (another client's name for it)"),
        ("queue.buffering.max.ms=5", "write linger.ms (another"),
        ("queue_buffering_max_ms=5", "write linger.ms (another"),
        ("kafka.message.max.bytes=5", "write max.request.size (another"),
        ("batch.num.messages=5", "write batch.size, in bytes"),
        ("statistics.interval.ms=5", "metrics are at http.listen"),
        ("group.id=x", "it is a consumer's"),
        ("value_serializer=x", "serialize in the application"),
        (
            "buffer.memory=128X",
            'buffer.memory = "128X" (-X): must be a whole number, at least 1048576, in bytes or as',
        ),
        ("linger.ms=5KB", "must be a whole number, at least 0."),
        ("batch.size=1.5MB", "in bytes or as 64KB or 128MB"),
    ],
)
def test_each_fault_is_one_sentence(override: str, words: str) -> None:
    (sentence,) = faults(override)
    assert words in sentence
    assert "\n" not in sentence


def test_all_faults_are_told_together() -> None:
    assert len(faults("linger.ms=x", "acks=most", "foo=1")) == 3


def test_later_sources_win(tmp_path: Path) -> None:
    file = tmp_path / "sidecar.toml"
    file.write_text(
        '[kafka]\n"linger.ms" = 1\nbatch.size = 2\nacks = 1\n[daemon]\nworkers = 3\n[clients.billing]\ntoken = "t"\n'
    )
    file.chmod(0o600)
    variables = {"KAFKA_SIDECAR__KAFKA__BATCH_SIZE": "4", "KAFKA_SIDECAR__DAEMON__SHUTDOWN_TIMEOUT_S": "7"}
    config = load("daemon.workers=5", path=file, environment=variables)
    assert config.values["linger.ms"] == 1
    assert config.values["batch.size"] == 4
    assert config.values["acks"] == 1
    assert config.values["daemon.workers"] == 5
    assert config.values["daemon.shutdown_timeout_s"] == 7.0
    assert config.clients == {"billing": {"token": "t"}}
    assert config.sources["linger.ms"] == str(file)
    assert config.sources["daemon.workers"] == "-X"


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("[kafka", "not valid TOML"),
        ("acks = 1", "outside of any table: put it under [kafka]"),
        ("[kafak]\nacks = 1", "did you mean [kafka]?"),
        ("[daemon]\nworkers = 2\n[kafak]\nacks = 1", "did you mean [kafka]?"),
        ('[kafka]\nacks = "most"', "sidecar.toml): must be one of"),
        ("[daemon]\nworkers = true", "must be a whole number"),
        ("[http]\nlisten = 5.5", "http.listen"),
        ("\xff", "cannot be read"),
    ],
)
def test_faults_of_the_file(tmp_path: Path, content: str, words: str) -> None:
    file = tmp_path / "sidecar.toml"
    file.write_text(content, encoding="latin-1")
    (sentence,) = faults(path=file)
    assert words in sentence


def test_a_missing_file(tmp_path: Path) -> None:
    assert "does not exist" in faults(path=tmp_path / "nothing.toml")[0]


def test_worker_mapping_has_every_row() -> None:
    mapping = load("compression.zstd.level=7", 'topics."a*".acks=1').to_mapping()
    assert set(BY_NAME) <= set(mapping)
    assert mapping["topics"] == {"a*": {"acks": 1}}


def test_rows_are_sound() -> None:
    assert len(BY_NAME) == len(SETTINGS), "a name stands twice"
    for row in SETTINGS:
        assert row.doc.endswith("."), row.name
        assert not row.choices or row.default is None or row.default in row.choices, row.name
        if (
            isinstance(row.default, (int, float))
            and not isinstance(row.default, bool)
            and row.least is not None
        ):
            assert row.least <= row.default <= (row.most or row.default), row.name
    assert nearest("bufer.memory", BY_NAME) == "buffer.memory"


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("64kb", 64 << 10),
        ("64 KiB", 64 << 10),
        ("1M", 1 << 20),
        ("1mib", 1 << 20),
        ("1g", 1 << 30),
        ("65536", 65536),
    ],
)
def test_sizes_may_have_their_unit(text: str, size: int) -> None:
    config = load(f"daemon.batch_growth_bytes={text}", "daemon.request_buffers_bytes=64MB")
    assert config.values["daemon.batch_growth_bytes"] == size
    assert config.values["daemon.request_buffers_bytes"] == 64 << 20


def test_every_size_has_a_name_that_says_so_or_is_listed() -> None:
    sizes = [row for row in SETTINGS if row.is_size]
    assert {row.name for row in sizes} >= {
        "buffer.memory",
        "batch.size",
        "dead_letters.max_bytes",
        "pool.page_bytes",
    }
    for row in SETTINGS:
        if row.kind is ValueKind.INTEGER and not row.is_size:
            assert "bytes" not in row.doc.split(".")[0].lower() or "second" in row.doc, (
                f"{row.name}: {row.doc}"
            )


def test_a_file_is_named_whatever_it_sets(tmp_path: Path) -> None:
    """With tables only, or with settings that -X overrides, log and status said "no configuration file"."""
    path = tmp_path / "sidecar.toml"
    for text in ('[clients.app]\n"records.per.second" = 5\n', '[kafka]\n"linger.ms" = 1\n', ""):
        path.write_text(text)
        assert load_config(path, ["bootstrap.servers=a:1", "linger.ms=2"], {}).file == str(path)
    assert load_config(None, ["bootstrap.servers=a:1"], {}).file == ""


def test_a_properties_file_is_taken_as_kafkas_tools_take_it(tmp_path: Path) -> None:
    path = tmp_path / "producer.properties"
    path.write_text(
        "# Licensed to the ASF\n! another comment\n\n"
        "bootstrap.servers = one:9092,\\\n    two:9092\n"
        "compression.type:lz4\nlinger.ms 7  \nbuffer.memory=128MB\nclient.id=caf\\u00e9\\=1\n"
        "daemon.workers=3\nacks=all\nacks=1\n"
        "key.serializer=org.apache.kafka.common.serialization.StringSerializer\n"
    )
    config = load_config(path, environment={})
    values = config.values
    assert values["bootstrap.servers"] == ["one:9092", "two:9092"]
    assert (values["compression.type"], values["linger.ms"], values["buffer.memory"]) == ("lz4", 7, 128 << 20)
    assert (values["client.id"], values["daemon.workers"], values["acks"]) == ("café=1", 3, 1)
    assert config.file == str(path)
    (warning,) = [each for each in config.warnings if "serializer" in each]
    assert warning.startswith(f"key.serializer ({path}) has no effect here: records arrive as bytes")
    for line, words in (("linger.mss=1", 'did you mean "linger.ms"?'), ("sasl.password=x", "chmod")):
        path.write_text(f"bootstrap.servers=one:9092\n{line}\n")
        path.chmod(0o644)
        with pytest.raises(ConfigError) as raised:
            load_config(path, environment={})
        assert words in raised.value.sentences[0]


def test_a_properties_file_with_another_name_is_recognized(tmp_path: Path) -> None:
    path = tmp_path / "kafka.conf"
    path.write_text("bootstrap.servers=one:9092\n")
    with pytest.raises(ConfigError, match=r"is not valid TOML: .* name it \*\.properties\.$"):
        load_config(path, environment={})


@pytest.mark.parametrize(
    ("variable", "right"),
    [
        ("KAFKA_SIDECAR_KAFKA_LINGER_MS", "KAFKA_SIDECAR__KAFKA__LINGER_MS"),
        ("KAFKA_SIDECAR_LINGER_MS", "KAFKA_SIDECAR__KAFKA__LINGER_MS"),
        ("KAFKA_SIDECAR_DAEMON_WORKERS", "KAFKA_SIDECAR__DAEMON__WORKERS"),
        ("KAFKA_SIDECAR_HTTP__LISTEN", "KAFKA_SIDECAR__HTTP__LISTEN"),
    ],
)
def test_a_variable_with_one_underscore_is_no_silence(variable: str, right: str) -> None:
    with pytest.raises(ConfigError) as raised:
        load_config(None, ["bootstrap.servers=a:1"], {variable: "3"})
    (sentence,) = raised.value.sentences
    assert (
        sentence == f"{variable} sets nothing: settings have two underscores after each part; write {right}."
    )


@pytest.mark.parametrize("variable", ["KAFKA_SIDECAR_RUNDIR", "KAFKA_SIDECAR_RUN_DR"])
def test_a_misspelt_variable_of_our_own_is_no_silence(variable: str) -> None:
    with pytest.raises(ConfigError) as raised:
        load_config(None, ["bootstrap.servers=a:1"], {variable: "/tmp"})
    assert raised.value.sentences == [f"{variable} sets nothing: did you mean KAFKA_SIDECAR_RUN_DIR?"]


def test_variables_that_are_no_settings_are_left_alone() -> None:
    """A service of Kubernetes with our name brings variables of its own."""
    foreign = {
        "KAFKA_SIDECAR_RUN_DIR": "/run/x",
        "KAFKA_SIDECAR_SERVICE_HOST": "10.0.0.1",
        "KAFKA_SIDECAR_PORT": "tcp://10.0.0.1:9464",
        "KAFKA_SIDECAR_PORT_9464_TCP": "tcp://10.0.0.1:9464",
    }
    assert load_config(None, ["bootstrap.servers=a:1"], foreign).warnings == ()


@pytest.mark.parametrize(
    ("overrides", "words"),
    [
        (("acks=0",), "acks = 0 switches idempotence off: lost records go unnoticed."),
        (("acks=1", "retries=0"), "acks = 1 and retries = 0 switch idempotence off: a retry may double"),
    ],
)
def test_settings_that_switch_idempotence_off_are_warned_of(overrides: tuple[str, ...], words: str) -> None:
    (warning,) = load(*overrides).warnings
    assert warning.startswith(words)
    assert load(*overrides, "enable.idempotence=false").warnings == ()


def test_each_name_of_another_client_leads_to_a_setting() -> None:
    for theirs, ours in OTHER_NAMES.items():
        assert theirs not in BY_NAME
        assert ours.split(",")[0].split(" ")[0] in BY_NAME, f"{theirs}: {ours}"
