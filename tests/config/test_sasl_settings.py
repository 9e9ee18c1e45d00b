"""Goal: SASL as people have it in their files, in both spellings, and one sentence for what cannot be used."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sidecar.config.jaas import JAAS_CHARACTERS_MAX, JaasError, read_jaas
from sidecar.config.loader import load_config
from sidecar.config.settings import ConfigError, SidecarConfig

BASE = ("bootstrap.servers=localhost:9092", "security.protocol=SASL_PLAINTEXT")
PLAIN_MODULE = "org.apache.kafka.common.security.plain.PlainLoginModule"
SCRAM_MODULE = "org.apache.kafka.common.security.scram.ScramLoginModule"


def load(*overrides: str) -> SidecarConfig:
    return load_config(None, [*BASE, *overrides], {})


@pytest.mark.parametrize(
    "overrides",
    [
        ("sasl.mechanism=SCRAM-SHA-512", "sasl.username=alice", "sasl.password=a=b,c"),
        ("sasl.mechanisms=scram-sha-512", "sasl.username=alice", "sasl.password=a=b,c"),
        (
            "sasl.mechanism=SCRAM-SHA-512",
            f'sasl.jaas.config={SCRAM_MODULE} required username="alice" password="a=b,c";',
        ),
        (
            "sasl.mechanism=SCRAM-SHA-512",
            "sasl.jaas.config=kafkashaded.x.ScramLoginModule REQUIRED\n username='alice'\n password='a=b,c'",
        ),
    ],
)
def test_all_spellings_say_the_same(overrides: tuple[str, ...]) -> None:
    config = load(*overrides)
    found = [config.values[f"sasl.{name}"] for name in ("mechanism", "username", "password")]
    assert found == ["SCRAM-SHA-512", "alice", "a=b,c"]


def test_a_plain_module_needs_no_mechanism_and_warns_of_clear_text() -> None:
    config = load(f'sasl.jaas.config={PLAIN_MODULE} required username="a" password="b";')
    assert config.values["sasl.mechanism"] == "PLAIN"
    assert sum("in clear text" in warning for warning in config.warnings) == 1


def test_a_token_in_clear_text_is_warned_of() -> None:
    token = ("sasl.mechanism=OAUTHBEARER", "sasl.oauthbearer.config=token=a.b.c")
    assert sum("the token in clear text" in warning for warning in load(*token).warnings) == 1


@pytest.mark.parametrize(
    ("overrides", "words"),
    [
        ((), "needs sasl.mechanism: one of PLAIN"),
        (("sasl.mechanism=GSSAPI",), "Kerberos"),
        (("sasl.mechanism=DIGEST-MD5",), '"DIGEST-MD5" is not one of'),
        (("sasl.mechanism=PLAIN", "sasl.mechanisms=SCRAM-SHA-256"), "say different things"),
        (("sasl.mechanism=PLAIN", "sasl.password=x"), "needs sasl.username"),
        (("sasl.mechanism=SCRAM-SHA-256", "sasl.username=x"), "needs sasl.password.file"),
        (("sasl.mechanism=PLAIN", "sasl.username=x", "sasl.password=a\0b"), "sasl.password has a NUL"),
        (
            ("sasl.mechanism=PLAIN", "sasl.username=x", "sasl.password.file=/nowhere/at/all"),
            "there is no such file",
        ),
        (
            ("sasl.mechanism=PLAIN", "sasl.username=x", "sasl.password=y", "sasl.password.file=/dev/null"),
            "are both set",
        ),
        (("sasl.mecanism=PLAIN", "sasl.mechanisms=PLAIN"), "needs sasl.username"),
        (("sasl.jaas.config=a.KerberosThing required;",), "names the login module 'KerberosThing'"),
        (("sasl.jaas.config=",), "cannot be read: it is empty"),
        (
            ("sasl.mechanism=PLAIN", f"sasl.jaas.config={SCRAM_MODULE} required username=a password=b;"),
            "must be SCRAM-SHA-256 or SCRAM-SHA-512, and it is 'PLAIN'",
        ),
        (
            (f"sasl.jaas.config={SCRAM_MODULE} required username=a password=b;",),
            "must be SCRAM-SHA-256 or SCRAM-SHA-512.",
        ),
        (
            ("sasl.mechanism=SCRAM-SHA-256", f"sasl.jaas.config={SCRAM_MODULE} required tokenauth=true;"),
            "the option 'tokenauth'",
        ),
        (
            ("sasl.username=x", f"sasl.jaas.config={PLAIN_MODULE} required username=a password=hidden;"),
            "username of sasl.jaas.config and sasl.username say different things",
        ),
    ],
)
def test_unusable_sasl_settings_are_one_sentence(overrides: tuple[str, ...], words: str) -> None:
    with pytest.raises(ConfigError) as refused:
        load(*overrides)
    text = "\n".join(refused.value.sentences)
    assert words in text and "hidden" not in text


def test_settings_without_sasl_are_warned_of() -> None:
    config = load_config(None, [BASE[0], "sasl.username=x"], {})
    (warning,) = config.warnings
    assert "sasl.username has no effect with security.protocol = PLAINTEXT" in warning


# ---- sasl.jaas.config


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "it is empty"),
        ("  // only a comment\n/* and another */", "it is empty"),
        ("a.Module", "ends where the flag"),
        ("a.Module needed x=y;", "no flag after the login module"),
        ("a.Module required x", "there is no = after"),
        ("a.Module required x=", "ends where the value"),
        ("a.Module required x=;", "expected the value"),
        ("a.Module required x='y", "is not closed"),
        ('a.Module required x="y\nz";', "is not closed"),
        ("a.Module required x=y x=z;", "is there twice"),
        ("a.Module required x=y; b.Module required;", "more than one entry"),
        ("a.Module required =y;", "expected the name"),
        ("KafkaClient { a.Module required; };", "no flag after the login module"),
        ("a.Module required x=" + "y" * JAAS_CHARACTERS_MAX, "has over 64 Ki characters"),
    ],
)
def test_an_entry_that_cannot_be_read(text: str, words: str) -> None:
    with pytest.raises(JaasError, match=words):
        read_jaas(text)


def test_an_entry_at_the_bound() -> None:
    head = "a.Module required x="
    value = "y" * (JAAS_CHARACTERS_MAX - len(head))
    assert read_jaas(head + value).options == {"x": value}


def test_comments_and_escapes() -> None:
    entry = read_jaas(
        'a.b.Module /* why */ required // here\n x="a\\"b\\\\c\\t\\101" y=\'d"e\' z=1.5-f_$ ;\n'
    )
    assert entry == ("Module", {"x": 'a"b\\c\tA', "y": 'd"e', "z": "1.5-f_$"})


@given(st.dictionaries(st.from_regex(r"[A-Za-z_]{1,8}", fullmatch=True), st.text(max_size=30), max_size=4))
def test_any_value_survives_its_quotes(options: dict[str, str]) -> None:
    def quoted(value: str) -> str:
        return '"' + value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n") + '"'

    text = "a.Module required " + " ".join(f"{name}={quoted(value)}" for name, value in options.items())
    assert read_jaas(text + ";").options == options


@given(st.text(max_size=200))
def test_any_text_is_read_or_refused(text: str) -> None:
    for candidate in (text, f"a.Module required {text}"):
        try:
            read_jaas(candidate)
        except JaasError as error:
            assert str(error).isprintable()
