"""A pipeline file: all that is wrong is found in one go, each with its line and what to do."""

from __future__ import annotations

import datetime
from collections.abc import Mapping
from pathlib import Path

import pytest

from client_stub.pipeline.example import EXAMPLE
from client_stub.pipeline.file import Pipeline, PipelineFaults, read_pipeline
from client_stub.pipeline.keys import reference

ROOT = Path(__file__).resolve().parents[3]
WHOLE = """\
[pipeline]
name = "late"
[source]
format = "csv"
path = "${FLIGHTS}/*.csv"
options = { header = true }
[[step]]
name = "late"
sql = '''
SELECT *
FROM source WHERE arr_delay > :minutes'''
params = { minutes = 15, day = 2026-11-01, carrier = "AA", is_full = true, share = 0.5 }
[[output]]
topic = "late-flights"
value = "to_json(struct(*))"
bad_rows = { topic = "bad" }
"""
ENVIRONMENT = {"FLIGHTS": "/data"}


def read(
    tmp_path: Path,
    text: str,
    settings: Mapping[str, str] | None = None,
    environment: Mapping[str, str] = ENVIRONMENT,
) -> Pipeline:
    (tmp_path / "late.toml").write_text(text)
    return read_pipeline(tmp_path / "late.toml", settings or {}, environment)


def faults(tmp_path: Path, text: str, settings: Mapping[str, str] | None = None) -> list[str]:
    with pytest.raises(PipelineFaults) as raised:
        read(tmp_path, text, settings)
    return str(raised.value).replace(f"{tmp_path}/", "").splitlines()


def test_a_whole_file(tmp_path: Path) -> None:
    found = read(tmp_path, WHOLE)
    assert (found.name, found.trigger, found.is_stream) == ("late", "once", False)
    assert (found.source.path, found.source.options) == ("/data/*.csv", {"header": "true"})
    assert found.steps[0].params["day"] == datetime.date(2026, 11, 1)
    assert found.outputs[0].view == "late", "the last step"
    assert (found.outputs[0].label, found.outputs[0].bad_topic) == ("late-flights", "bad")
    assert found.positions.content_line(("step", 0, "sql")) == 10


def test_set_overrides_a_parameter_with_a_value_of_its_type(tmp_path: Path) -> None:
    settings = {"minutes": "30", "day": "2026-12-24", "carrier": "30", "is_full": "false", "share": "1"}
    assert read(tmp_path, WHOLE, settings).steps[0].params == {
        "minutes": 30,
        "day": datetime.date(2026, 12, 24),
        "carrier": "30",
        "is_full": False,
        "share": 1.0,
    }


@pytest.mark.parametrize(
    ("old", "new", "fault"),
    [
        ("format =", "fromat =", "late.toml:4: key 'fromat' is not known in source, did you mean 'format'?"),
        ("[source]", "[sauce]", "late.toml:3: table 'sauce' is not known, did you mean 'source'?"),
        ("[[step]]", "[step]", "late.toml:7: [step] may be there several times, write [[step]]"),
        ('name = "late"\n[source]', "[source]", "late.toml:1: name is missing, add name = ..."),
        (
            '"late"\n[source]',
            "3\n[source]",
            "late.toml:2: name = 3 must be a text that is not empty, correct the value",
        ),
        (
            'topic = "late-flights"\n',
            "",
            "late.toml:13: an output has topic or topic_expr, one of them, name the topic",
        ),
        ('{ topic = "bad" }', "{}", "late.toml:16: bad_rows has topic or path, one of them, name one"),
        (
            '{ topic = "bad" }',
            '{ topik = "b" }',
            "late.toml:16: key 'topik' is not known in bad_rows, did you mean 'topic'?",
        ),
        ('"csv"', '"${NOWHERE}"', "late.toml:4: the environment has no NOWHERE, set NOWHERE before the run"),
        (
            ":minutes'''",
            "'${FLIGHTS}' '''",
            "late.toml:9: the environment is not put into SQL, make it a parameter of "
            'the step: params = { name = "${NAME}" } and :name',
        ),
        (
            "[[output]]",
            '[[output]]\nfrom = "lat"',
            "late.toml:14: there is no step 'lat', did you mean 'late'?",
        ),
        (
            "[[output]]",
            '[[output]]\ndelivery = "exactly_once"',
            "late.toml:14: delivery = exactly_once is not available in "
            "this version, leave it out: a retried task may write its rows again",
        ),
        (
            "[source]",
            'trigger = "5 s"\n[source]',
            'late.toml:3: trigger = "5 s" must be "once", "available-now" or an '
            'interval such as "10s", correct the value',
        ),
        (
            "[source]",
            'trigger = "10s"\n[source]',
            'late.toml:3: a stream needs a checkpoint, add checkpoint = "folder"',
        ),
        (
            "[source]",
            'checkpoint = "x"\n[source]',
            "late.toml:3: a batch has no checkpoint, leave it out, or make it a "
            'stream: trigger = "available-now"',
        ),
        (
            "[[output]]",
            '[[step]]\nname = "Late"\nsql = "SELECT 1"\n[[output]]',
            "late.toml:14: there is another view 'Late', give each step its own name",
        ),
        (
            "[pipeline]",
            "[pipeline",
            "late.toml:1: no TOML: expected ']' at the end of a table declaration, correct the line",
        ),
        (
            "[[output]]",
            "[sidecar]\nautostart = true\n[[output]]",
            'late.toml:14: autostart needs the brokers, add [kafka] with "bootstrap.servers" = "host:9092"',
        ),
        (
            "[[output]]",
            "[sidecar]\nautostart = true\nrun_dir = 'x'\n[kafka]\nbootstrap.servers = 'a:1'\n[[output]]",
            "late.toml:15: autostart excludes run_dir, leave out the one or the other",
        ),
        (
            "[pipeline]",
            'kafka = "a:1"\n[pipeline]',
            "late.toml:1: kafka is a table of which there is one, write [kafka]",
        ),
        (
            "[[output]]",
            "[sidecar]\nautostart = true\n[kafka]\nbootstrap.servers = ['a:1']\n[[output]]",
            "late.toml:16: bootstrap.servers must be a text, number or flag, correct the value",
        ),
        (
            'path = "${FLIGHTS}/*.csv"\n',
            "",
            'late.toml:3: csv needs a path, add path = "FOLDER"',
        ),
        (
            'name = "late"\nsql',
            "sql",
            "late.toml:7: name is missing, add name = ...",
        ),
        (
            "[[output]]",
            '[[step]]\nsql = "SELECT 1"\n[[output]]\nfrom = "x"',
            "late.toml:16: there is no step 'x', known are source, late",
        ),
        (
            "header = true",
            "password = ['s3cr3t']",
            "late.toml:6: options = {...} must be a table of texts, numbers and flags, correct the value",
        ),
        (
            "[[output]]",
            "[kafka]\nacks = 1\n[[output]]",
            "late.toml:14: acks is a setting of the daemon, which all its clients share, put it into the daemon's "
            "configuration, or let each host start one: autostart = true",
        ),
    ],
)
def test_each_fault_is_named_with_its_line(tmp_path: Path, old: str, new: str, fault: str) -> None:
    assert old in WHOLE
    assert fault in faults(tmp_path, WHOLE.replace(old, new, 1))


def test_autostart_has_the_settings_of_its_daemon(tmp_path: Path) -> None:
    text = (
        WHOLE
        + '[sidecar]\nautostart = true\n[kafka]\n"bootstrap.servers" = "${BROKERS}"\n'
        + "linger.ms = 5\nenable.idempotence = true\n"
    )
    assert read(tmp_path, text, environment={**ENVIRONMENT, "BROKERS": "a:1"}).sink_options() == {
        "sidecar.autostart": "true",
        "kafka.bootstrap.servers": "a:1",
        "kafka.linger.ms": "5",
        "kafka.enable.idempotence": "true",
    }
    assert "late.toml:20: the environment has no BROKERS, set BROKERS before the run" in faults(
        tmp_path, text
    )


def test_all_faults_are_named_at_once(tmp_path: Path) -> None:
    text = WHOLE.replace("format", "fromat").replace("topic = ", "topik = ").replace('"late"\n[', '""\n[')
    found = faults(tmp_path, text, {"minuets": "3"})
    lines = [int(each.split(":")[1]) for each in found]
    assert lines == sorted(lines)
    assert len(found) >= 6
    assert any("--set minuets: no step has this parameter, did you mean 'minutes'?" in each for each in found)


def test_a_value_that_is_no_number_is_refused(tmp_path: Path) -> None:
    assert faults(tmp_path, WHOLE, {"minutes": "many"}) == [
        "late.toml:12: --set minutes=many is no int, as its default 15 is, give a value of type int"
    ]


def test_a_file_that_is_not_there_is_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(PipelineFaults, match=r"none\.toml:1: the file cannot be read: No such file"):
        read_pipeline(tmp_path / "none.toml", {}, {})


def test_a_file_with_a_mark_of_its_encoding_is_read(tmp_path: Path) -> None:
    assert read(tmp_path, f"\ufeff{WHOLE}").name == "late"


def test_the_example_is_a_pipeline(tmp_path: Path) -> None:
    found = read(tmp_path, EXAMPLE, environment={})
    assert [output.topic for output in found.outputs] == ["late-flights"]


@pytest.mark.parametrize(
    "path", sorted((ROOT / "examples/pipelines").glob("*.toml")), ids=lambda path: path.name
)
def test_the_worked_examples_are_pipelines(path: Path) -> None:
    names = ("FLIGHTS_CSV", "FLIGHTS_TOPIC", "IN_SERVERS", "CHECKPOINT")
    url = {"REGISTRY": "http://registry:8081"}
    assert read_pipeline(path, {}, dict.fromkeys(names, "x") | url).outputs


def test_the_page_has_the_reference() -> None:
    """Printed by python -c 'from client_stub.pipeline.keys import reference; print(reference())'."""
    assert reference().strip() in (ROOT / "docs/pipeline.md").read_text()


def test_formats_of_key_and_value(tmp_path: Path) -> None:
    text = WHOLE + 'value_format = "avro"\nvalue_schema = "late.avsc"\nkey = "carrier"\nkey_format = "raw"\n'
    formats = read(tmp_path, text).outputs[0].formats
    assert formats == {"value": ("avro", tmp_path / "late.avsc", None, False)}, (
        "relative to the file; raw is none"
    )
    text += 'key_format = "protobuf"\n[registry]\nurl = "http://registry:8081"\n'
    with_key = text.replace('key_format = "raw"\n', "")
    formats = read(tmp_path, with_key).outputs[0].formats
    assert formats["key"] == ("protobuf", None, None, True), "the latest one of the registry"
    plain = with_key.replace("[registry]", 'registry = false\nkey_schema = "k.proto"\n[registry]')
    assert [each.has_prefix for each in read(tmp_path, plain).outputs[0].formats.values()] == [False, False]


@pytest.mark.parametrize(
    ("more", "text"),
    [
        ('value_format = "arvo"', 'value_format = "arvo" must be "raw", "json", "avro" or "protobuf", correct'),
        ('value_fromat = "avro"', "key 'value_fromat' is not known in output, did you mean 'value_format'?"),
        ('value_format = "avro"', 'value_format = avro needs a schema, add value_schema = "FILE"'),
        ('value_schema = "x"', "value_schema is not for value_format = raw, leave it out, or correct value_format"),
        ('value_message = "x"', "value_message is not for value_format = raw, leave it out, or correct value_format"),
        ('key_format = "json"', "there is no key, add key = ..."),
        ("registry = true", "there is no table [registry], add it with its url"),
    ],
)  # fmt: skip
def test_faults_of_formats(tmp_path: Path, more: str, text: str) -> None:
    (found,) = faults(tmp_path, WHOLE + more)
    assert found.startswith(f"late.toml:17: {text}")


def test_a_registry(tmp_path: Path) -> None:
    text = WHOLE + '[registry]\nurl = "https://registry/apis/v7"\nuser = "me"\npassword = "${SECRET}"\n'
    found = read(tmp_path, text, environment={**ENVIRONMENT, "SECRET": "hidden"}).registry
    assert found is not None
    assert (found.url, found.subject, found.auto_register) == ("https://registry/apis/v7", "topic", False)
    assert (found.user, found.password) == ("me", "hidden")
    assert "hidden" not in repr(found)


@pytest.mark.parametrize(
    ("more", "text"),
    [
        ("urll = 'x'", "key 'urll' is not known in registry, did you mean 'url'?"),
        ("subject = 'topics'", 'subject = "topics" must be "topic", "record" or "topic-record", correct the value'),
        ("password = 'hidden'", 'password = *** must be a variable, "${NAME}", correct the value'),
        ("password = 1234", 'password = *** must be a variable, "${NAME}", correct the value'),
        ("user = 'me'", "a login has user, and password or password_file, give both"),
        ("token_file = 'a'\ntoken = '${FLIGHTS}'", "token excludes token_file, leave out the one or the other"),
    ],
)  # fmt: skip
def test_faults_of_a_registry(tmp_path: Path, more: str, text: str) -> None:
    found = faults(tmp_path, f"{WHOLE}[registry]\nurl = 'http://registry'\n{more}\n")
    assert [each.split(": ", 1)[1] for each in found] == [text]


@pytest.mark.parametrize(
    "url", ["registry:8081", "http://me:hidden@registry", "http://registry?password=hidden"]
)
def test_the_url_of_a_registry_has_no_login(tmp_path: Path, url: str) -> None:
    (found,) = faults(tmp_path, f"{WHOLE}[registry]\nurl = '{url}'\n")
    assert found.startswith(
        "late.toml:18: url must be http://HOST:PORT or https://HOST, without a user or password,"
    )
    assert "hidden" not in found


def test_a_subject_of_the_topic_needs_one_topic(tmp_path: Path) -> None:
    text = (
        WHOLE.replace('topic = "late-flights"', "topic_expr = 'carrier'")
        + "value_format = 'avro'\nvalue_schema = 'x'\n"
    )
    (found,) = faults(tmp_path, f"{text}[registry]\nurl = 'http://registry'\n")
    assert found == (
        "late.toml:14: the topic of a row, and so the subject of its schema, is not known before it is sent, "
        'take subject = "record" in [registry], or topic'
    )
    read(tmp_path, f"{text}[registry]\nurl = 'http://registry'\nsubject = 'record'\n")
