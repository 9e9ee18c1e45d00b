"""Goal: a configuration file with a secret in it is its owner's alone, or is refused by one sentence."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from sidecar.config.loader import load_config
from sidecar.config.settings import ConfigError
from tests.tools import ROOT_USER, needs

NOBODY = 65_534
PLAIN = '[kafka]\n"bootstrap.servers" = "h:9092"\n'
SECRETS = {
    "a token": (f'{PLAIN}[clients.billing]\ntoken = "s3cret"\n', 'clients."billing".token'),
    "a password": (f'{PLAIN}"ssl.key.password" = "s3cret"\n', "ssl.key.password"),
}


def written(folder: Path, text: str, mode: int, owner: int = -1) -> Path:
    path = folder / "sidecar.toml"
    path.write_text(text)
    path.chmod(mode)
    if owner >= 0:
        os.chown(path, owner, -1)
    return path


@pytest.mark.parametrize("kind", SECRETS)
@pytest.mark.parametrize("mode", [0o604, 0o644, 0o660, 0o666, 0o650])
def test_one_that_others_may_read_or_change_is_refused(tmp_path: Path, kind: str, mode: int) -> None:
    text, name = SECRETS[kind]
    path = written(tmp_path, text, mode)
    with pytest.raises(ConfigError) as refused:
        load_config(path, environment={})
    (sentence,) = refused.value.sentences
    for word in (str(path), f"mode {mode:04o}", name, f"chmod 600 {path}"):
        assert word in sentence
    assert "s3cret" not in sentence


@needs(ROOT_USER)
@pytest.mark.parametrize(("owner", "is_taken"), [(0, True), (NOBODY, False)])
def test_the_group_may_read_a_file_of_roots_only(tmp_path: Path, owner: int, is_taken: bool) -> None:
    path = written(tmp_path, SECRETS["a token"][0], 0o640, owner)
    if is_taken:
        assert load_config(path, environment={}).clients["billing"]["token"] == "s3cret"
    else:
        with pytest.raises(ConfigError, match="has mode 0640"):
            load_config(path, environment={})


@pytest.mark.parametrize("mode", [0o600, 0o400])
def test_the_owners_own_is_taken(tmp_path: Path, mode: int) -> None:
    config = load_config(written(tmp_path, SECRETS["a token"][0], mode), environment={})
    assert config.holds_secrets


@pytest.mark.parametrize("more", ["", "[clients.billing]\nuids = [1000]\n"])
def test_without_a_secret_everybody_may_read_it(tmp_path: Path, more: str) -> None:
    assert not load_config(written(tmp_path, PLAIN + more, 0o644), environment={}).holds_secrets


def test_a_secret_in_a_file_of_its_own_leaves_the_configuration_open(tmp_path: Path) -> None:
    (tmp_path / "password").write_text("s3cret\n")
    path = written(tmp_path, f'{PLAIN}"ssl.key.password.file" = "{tmp_path}/password"\n', 0o644)
    assert load_config(path, environment={}).holds_secrets


def test_a_file_of_a_secret_that_everybody_may_read_is_a_warning(tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text("s3cret")
    text = f'{PLAIN}"sasl.password.file" = "{secret}"\n[clients.billing]\ntoken.file = "{secret}"\n'
    login = 'security.protocol = "SASL_SSL"\nsasl.mechanism = "PLAIN"\nsasl.username = "a"'
    text = text.replace("[kafka]", f"[kafka]\n{login}")
    path = written(tmp_path, text, 0o600)
    for mode, count in ((0o644, 2), (0o640, 0), (0o400, 0)):
        secret.chmod(mode)
        warnings = [each for each in load_config(path, environment={}).warnings if "may read" in each]
        assert len(warnings) == count
        assert all(str(secret) in each and "mode 0644" in each and "s3cret" not in each for each in warnings)
    secret.chmod(0o644)
    names = {
        each.split(" = ")[0] for each in load_config(path, environment={}).warnings if "may read" in each
    }
    assert names == {"sasl.password.file", 'clients."billing".token.file'}
