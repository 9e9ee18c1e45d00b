"""``[clients.NAME]`` in a configuration: what is taken, and one sentence for whatever is not."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sidecar.cli.config import to_toml
from sidecar.config.client_rules import Caller, ClientRule, ClientRules, digest_of
from sidecar.config.client_tables import TOKENS_MAX
from sidecar.config.live import difference
from sidecar.config.loader import load_config
from sidecar.config.settings import ConfigError, SidecarConfig

SERVERS = "bootstrap.servers=localhost:9092"


def load(tmp_path: Path, text: str, *, mode: int = 0o600, **environment: str) -> SidecarConfig:
    file = tmp_path / "sidecar.toml"
    file.write_text(text)
    file.chmod(mode)
    return load_config(file, [SERVERS], environment)


def faults(tmp_path: Path, text: str, *, mode: int = 0o600, **environment: str) -> list[str]:
    with pytest.raises(ConfigError) as refused:
        load(tmp_path, text, mode=mode, **environment)
    return refused.value.sentences


def test_names_become_numbers_and_tokens_digests(tmp_path: Path) -> None:
    tokens = tmp_path / "tokens"
    tokens.write_text("old\nnew\r\n\n")
    config = load(
        tmp_path,
        """
        [clients."my.app"]
        uids = ["root", 1001, "1002"]
        gids = "root, 50"
        token.file = "${PLACE}/tokens"
        topics.allow = ["a-*"]
        topics.deny = "a-b"
        records.per.second = 10
        bytes.per.second = 1_000
        over.limit = "discard"
        [clients.unlisted]
        token = "sesame"
        [daemon]
        unlisted_clients = "deny"
        """,
        PLACE=str(tmp_path),
    )
    rule = config.client_rules["my.app"]
    assert rule == ClientRule(
        "my.app",
        tokens=(digest_of("old"), digest_of("new")),
        uids=(0, 1001, 1002),
        gids=(0, 50),
        allow=("a-*",),
        deny=("a-b",),
        records_per_second=10,
        bytes_per_second=1_000,
        discards=True,
    )
    assert config.client_rules["unlisted"].tokens == (digest_of("sesame"),)
    assert ClientRules.from_mapping(config.to_mapping()).of("my.app") == rule
    assert "sesame" not in to_toml(config) + json.dumps(config.to_mapping(), default=str)
    shown = tmp_path / "shown.toml"
    shown.write_text(to_toml(config))
    shown.chmod(0o600)
    assert load_config(shown, [], {}).client_rules["my.app"] == rule


def test_by_variable(tmp_path: Path) -> None:
    variables = {
        "KAFKA_SIDECAR__CLIENTS__app__UIDS": "7",
        "KAFKA_SIDECAR__CLIENTS__app__TOPICS_ALLOW": "a, b",
    }
    rule = load(tmp_path, "", **variables).client_rules["app"]
    assert (rule.uids, rule.allow) == ((7,), ("a", "b"))


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        (
            'uids = ["no-such-user"]',
            'clients."a".uids has "no-such-user": this host has no user of that name.',
        ),
        (
            'gids = ["no-such-group"]',
            'clients."a".gids has "no-such-group": this host has no group of that name.',
        ),
        ("uids = [4294967296]", "the largest number is 4294967294."),
        ("uids = [-1]", 'has "-1": this host has no user'),
        ("uids = [true]", "must be a list of names or numbers"),
        ('topics.allow = ["a[b"]', "must be a topic's name, or a glob of *, ? and [ab]."),
        ('topics.deny = [""]', "must be a topic's name, or a glob"),
        ("topics.allow = 5.5", "must be a list"),
        ("records.per.second = 0", "at least 1"),
        ('over.limit = "drop"', "one of block, discard"),
        ('over.limit = "discard"', "over.limit needs a rate: set records.per.second or bytes.per.second."),
        ('token = ""', "give a secret, or leave it out."),
        ('token.file = "/no/such/file"', "there is no such file"),
        ('token.file = "${NOT_SET}/x"', "the environment variable NOT_SET is not set"),
        ('tokens = "x"', "[clients.NAME] takes token, token.file, uids, gids"),
    ],
)
def test_each_fault_is_one_sentence(tmp_path: Path, text: str, sentence: str) -> None:
    (found,) = faults(tmp_path, f"[clients.a]\n{text}\n")
    assert sentence in found


def test_unlisted_stands_in_the_daemons_table(tmp_path: Path) -> None:
    """A client may be called so, and then it has a table."""
    (found,) = faults(tmp_path, '[clients]\nunlisted = "deny"\n')
    assert 'write unlisted_clients = "deny" into [daemon]' in found


def test_a_path_with_a_null_character_is_one_sentence(tmp_path: Path) -> None:
    (sentence,) = faults(tmp_path, '[clients.a]\n"token.file" = "\\u0000"\n')
    assert sentence == 'clients."a".token.file: a path has no null characters.'


def test_a_token_file_has_a_bound(tmp_path: Path) -> None:
    tokens = tmp_path / "tokens"
    for count, is_good in ((TOKENS_MAX, True), (TOKENS_MAX + 1, False)):
        tokens.write_text("".join(f"token-{number}\n" for number in range(count)))
        text = f'[clients.a]\ntoken.file = "{tokens}"\n'
        if is_good:
            assert len(load(tmp_path, text).client_rules["a"].tokens) == count
        else:
            assert "one in a line" in faults(tmp_path, text)[0]


def test_a_changed_token_file_is_a_difference(tmp_path: Path) -> None:
    tokens = tmp_path / "tokens"
    tokens.write_text("old")
    text = f'[clients.a]\ntoken.file = "{tokens}"\n'
    old = load(tmp_path, text)
    assert difference(old, load(tmp_path, text)).changes == ()
    tokens.write_text("new")
    assert difference(old, load(tmp_path, text)).changes == (
        'clients."a" by its token file or the host\'s users',
    )


@pytest.mark.parametrize(
    ("topic", "words"),
    [
        ("a-1", None),
        ("b-1", "topics.allow of [clients.app] does not have it."),
        ("a-secret", 'topics.deny of [clients.app] has "*-secret".'),
        ("A-1", "topics.allow"),
    ],
)
def test_topics(topic: str, words: str | None) -> None:
    rule = ClientRule("app", allow=("a-*",), deny=("*-secret",))
    found = rule.topic_refusal(topic)
    assert (found is None) if words is None else (found is not None and words in found and topic in found)


def test_a_group_or_a_user_and_root_is_nobody_special() -> None:
    rule = ClientRule("app", uids=(5,), gids=(6,))
    assert rule.admits(Caller(5))
    assert rule.admits(Caller(9, frozenset({6})))
    assert not rule.admits(Caller(0, frozenset({0})))
    assert ClientRule("app").admits(Caller(0))


words = st.one_of(st.text(max_size=8), st.integers(), st.floats(), st.booleans(), st.none())
keys = st.sampled_from(
    [
        "token",
        "token.file",
        "uids",
        "gids",
        "topics.allow",
        "topics.deny",
        "records.per.second",
        "over.limit",
        "x",
    ]
)


@settings(max_examples=200)
@given(st.dictionaries(keys, st.one_of(words, st.lists(words, max_size=3)), max_size=4))
def test_whatever_a_table_says_it_is_taken_or_refused_in_sentences(table: dict[str, object]) -> None:
    environment = {
        f"KAFKA_SIDECAR__CLIENTS__a__{key.replace('.', '_').upper()}": ",".join(map(str, value))
        if isinstance(value, list)
        else str(value)
        for key, value in table.items()
    }
    try:
        config = load_config(None, [SERVERS], environment)
    except ConfigError as error:
        assert all(each and "Traceback" not in each for each in error.sentences)
    else:
        assert not table or config.client_rules["a"].name == "a"
    assert os.environ.keys() >= {"PATH"}
