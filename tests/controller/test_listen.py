"""``daemon.listen``: never open without CURVE, and public keys decide as users and groups do."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from client_stub.zmtp.curve import KeyPair
from client_stub.zmtp.keys import read_key_file
from sidecar.config.client_rules import Caller, ClientRule, ClientRules
from sidecar.config.live import difference
from sidecar.config.loader import load_config
from sidecar.config.settings import ConfigError, SidecarConfig
from sidecar.tools.testing.daemon import cli

KEY, OTHER = b"\x01" * 32, b"\x02" * 32
LOCAL, BY_KEY, BY_OTHER = Caller(1000), Caller(1 << 62, key=KEY), Caller(1 << 62 | 1, key=OTHER)


def keygen(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([*cli("keygen"), *words], capture_output=True, text=True, timeout=60, check=False)


def load(folder: Path, text: str) -> SidecarConfig:
    file = folder / "sidecar.toml"
    file.write_text(text)
    file.chmod(0o600)
    return load_config(file, ["bootstrap.servers=localhost:9092"], {})


def faults(folder: Path, text: str) -> list[str]:
    with pytest.raises(ConfigError) as refused:
        load(folder, text)
    return refused.value.sentences


def test_keygen_makes_a_file_that_both_ends_take_and_never_overwrites(tmp_path: Path) -> None:
    daemon, client = tmp_path / "daemon.key", tmp_path / "client.key"
    public = keygen(str(daemon)).stdout.strip()
    assert KeyPair.of_secret(read_key_file(str(daemon), is_client=False).secret_key).public.hex() == public
    assert daemon.stat().st_mode & 0o777 == 0o600
    made = keygen(str(client), "--server-key", public)
    keys = read_key_file(str(client), is_client=True)
    assert keys.server_key.hex() == public
    assert KeyPair.of_secret(keys.secret_key).public.hex() == made.stdout.strip()
    again = keygen(str(client))
    assert again.returncode == 1
    assert again.stderr == f"{client} is there already, and a key is never overwritten: name another file.\n"
    wrong = keygen(str(tmp_path / "new.key"), "--server-key", "12")
    assert wrong.returncode == 1
    assert wrong.stderr == "--server-key 12 cannot be used: a key must be 64 hexadecimal digits.\n"
    assert not (tmp_path / "new.key").exists()


def test_a_key_file_that_cannot_be_written_whole_is_not_left_behind(tmp_path: Path) -> None:
    """As on a full disk. The next try would have found a file there already."""
    path = tmp_path / "daemon.key"
    made = subprocess.run(
        ["sh", "-c", 'ulimit -f 0; exec "$@"', "sh", *cli("keygen"), str(path)],
        # Without its coverage, which could not be written either.
        env={name: value for name, value in os.environ.items() if not name.startswith("COVERAGE_")},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (made.returncode, made.stderr) == (1, f"{path} cannot be written (File too large).\n")
    assert not path.exists()


def test_listen_needs_a_key_file_that_is_ours_alone(tmp_path: Path) -> None:
    key = tmp_path / "daemon.key"
    assert keygen(str(key)).returncode == 0
    good = f'[daemon]\nlisten = "tcp://127.0.0.1:9470"\ncurve_key_file = "{key}"\n'
    config = load(tmp_path, good)
    assert config.holds_secrets
    assert faults(tmp_path, '[daemon]\nlisten = "tcp://127.0.0.1:9470"\n') == [
        'daemon.listen = "tcp://127.0.0.1:9470" needs daemon.curve_key_file: tcp:// is never open without CURVE, also '
        "not on loopback. kafka-sidecar keygen makes a key."
    ]
    key.chmod(0o644)
    (sentence,) = faults(tmp_path, good)
    assert sentence.startswith("daemon.curve_key_file: ")
    assert "has mode 0644" in sentence
    for wrong in ("tcp://host", "ipc:///x", "0.0.0.0:1", "tcp://host:65535", "tcp://host:0"):
        (sentence, *_) = faults(tmp_path, f'[daemon]\nlisten = "{wrong}"\ncurve_key_file = "{key}"\n')
        assert f'daemon.listen = "{wrong}" must be tcp://host:port' in sentence


def test_another_address_or_key_needs_a_restart(tmp_path: Path) -> None:
    first, second = tmp_path / "1.key", tmp_path / "2.key"
    assert keygen(str(first)).returncode == keygen(str(second)).returncode == 0
    text = '[daemon]\nlisten = "tcp://127.0.0.1:9470"\ncurve_key_file = "{}"\n'
    found = difference(load(tmp_path, text.format(first)), load(tmp_path, text.format(second)))
    assert len(found.refusals) == 1
    assert "daemon.curve_key_file" in found.refusals[0]


@pytest.mark.parametrize(
    ("value", "words"),
    [
        ('["12"]', 'curve.public.keys has "12": a key must be 64 hexadecimal digits.'),
        ("[]", "curve.public.keys is empty"),
    ],
)
def test_a_wrong_public_key_is_one_sentence(tmp_path: Path, value: str, words: str) -> None:
    (sentence,) = faults(tmp_path, f'[clients.billing]\n"curve.public.keys" = {value}\n')
    assert words in sentence


def test_a_key_opens_the_names_that_have_it_and_no_other() -> None:
    both = ClientRule("both", keys=(KEY,), uids=(1000,), allow=("a",))
    rules = ClientRules(
        {
            "remote": ClientRule("remote", keys=(KEY,)),
            "both": both,
            "local": ClientRule("local", uids=(1000,)),
        }
    )
    admitted = {
        (name, who): rules.refusal(name, caller) is None
        for name in ("remote", "both", "local", "unlisted")
        for who, caller in (("local", LOCAL), ("key", BY_KEY), ("other", BY_OTHER))
    }
    assert {pair for pair, is_in in admitted.items() if is_in} == {
        ("remote", "key"),
        ("both", "local"),
        ("both", "key"),
        ("local", "local"),
        ("unlisted", "local"),
    }
    assert rules.knows_key(KEY)
    assert not rules.knows_key(OTHER)
    assert not ClientRules({}).knows_key(KEY)
    assert KEY.hex() in str(rules.refusal("local", BY_KEY))


def test_over_tcp_nobody_waits_for_a_topic_that_no_name_of_its_key_may_have() -> None:
    rules = ClientRules({"billing": ClientRule("billing", keys=(KEY,), allow=("billing-*",))})
    assert rules.lookup_refusal("billing-1", BY_KEY) is None
    assert f"lets key {KEY.hex()} send to topic audit under no name" in str(
        rules.lookup_refusal("audit", BY_KEY)
    )
    assert rules.lookup_refusal("audit", LOCAL) is None


def test_rules_reach_workers_with_their_keys() -> None:
    rule = ClientRule("billing", keys=(KEY, OTHER))
    assert ClientRule.from_mapping({**rule.to_mapping(), "keys": [KEY, OTHER]}) == rule


def test_a_run_dir_of_another_host_is_none_for_a_daemon() -> None:
    environment = {**os.environ, "KAFKA_SIDECAR_RUN_DIR": "tcp://host:9470"}
    status = subprocess.run(
        cli("status"), capture_output=True, text=True, timeout=60, check=False, env=environment
    )
    assert status.returncode != 0
    assert "tcp://host:9470 is the address of a daemon for clients" in status.stderr
