"""Goal: a secret comes from its setting, a file or a variable's directory, and is shown nowhere."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from click.testing import CliRunner

from sidecar.cli.main import cli
from sidecar.config.loader import load_config
from sidecar.config.secret_sources import SECRET_FILE_BYTES_MAX, SecretError, expand_path, read_secret
from sidecar.config.settings import SETTINGS, ConfigError, SidecarConfig

MARK = "Geheim-${HOME}-'\"\\#=%"
"""A password with characters that files, shells and formats have a meaning for."""
NAME = "ssl.key.password"


def load(*overrides: str, environment: dict[str, str] | None = None) -> SidecarConfig:
    return load_config(None, ["bootstrap.servers=localhost:9092", *overrides], environment or {})


def faults(*overrides: str, environment: dict[str, str] | None = None) -> list[str]:
    with pytest.raises(ConfigError) as refused:
        load(*overrides, environment=environment)
    return refused.value.sentences


def test_a_value_is_taken_as_it_stands() -> None:
    config = load(environment={"KAFKA_SIDECAR__KAFKA__SSL_KEY_PASSWORD": MARK})
    assert read_secret(config.values, NAME) == MARK
    assert read_secret(load().values, NAME) is None


@pytest.mark.parametrize("end", ["", "\n", "\r\n"])
def test_a_file_is_read_without_its_line_end(tmp_path: Path, end: str) -> None:
    (tmp_path / "password").write_bytes(f" {MARK} {end}".encode())
    config = load(f"{NAME}.file={tmp_path}/password")
    assert read_secret(config.values, NAME) == f" {MARK} "
    (tmp_path / "password").write_text("another")
    assert read_secret(config.values, NAME) == "another", "it is read at each use"


def test_a_path_may_name_a_directory_of_credentials(tmp_path: Path) -> None:
    (tmp_path / "key-password").write_text(MARK)
    config = load(
        f"{NAME}.file=${{CREDENTIALS_DIRECTORY}}/key-password",
        environment={"CREDENTIALS_DIRECTORY": str(tmp_path)},
    )
    assert config.values[f"{NAME}.file"] == f"{tmp_path}/key-password"
    assert read_secret(config.values, NAME) == MARK
    (sentence,) = faults(f"{NAME}.file=${{CREDENTIALS_DIRECTORY}}/key-password")
    assert "CREDENTIALS_DIRECTORY is not set" in sentence
    assert "LoadCredential=" in sentence
    assert expand_path("/a/${B}/${C}", {"B": "b", "C": "c"}) == "/a/b/c"
    with pytest.raises(SecretError, match="variable B is not set"):
        expand_path("${B}/x", {})


def test_a_file_that_cannot_be_used_is_one_sentence(tmp_path: Path) -> None:
    path = tmp_path / "password"
    setting = f'{NAME}.file = "{path}"'
    assert faults(f"{NAME}.file={path}") == [f"{setting}: there is no such file."]
    path.write_text("")
    assert faults(f"{NAME}.file={path}") == [f"{setting}: the file is empty."]
    path.write_text("\n")
    assert faults(f"{NAME}.file={path}") == [f"{setting}: the file has no text."]
    path.write_bytes(b"\xff\xfe")
    assert faults(f"{NAME}.file={path}") == [f"{setting}: the file is not text in UTF-8."]
    assert faults(f"{NAME}.file={tmp_path}") == [f'{NAME}.file = "{tmp_path}": this is not a regular file.']
    os.mkfifo(tmp_path / "pipe")
    assert "not a regular file" in faults(f"{NAME}.file={tmp_path}/pipe")[0]
    assert "cannot be read" in faults(f"{NAME}.file=/proc/self/mem")[0]
    path.write_text("good")
    assert faults(f"{NAME}.file={path}", f"{NAME}={MARK}") == [
        f"{NAME} and {NAME}.file are both set: keep one of them."
    ]


def test_a_file_of_a_secret_has_a_bound(tmp_path: Path) -> None:
    path = tmp_path / "password"
    path.write_text("x" * SECRET_FILE_BYTES_MAX)
    assert load(f"{NAME}.file={path}")
    path.write_text("x" * (SECRET_FILE_BYTES_MAX + 1))
    assert faults(f"{NAME}.file={path}") == [f'{NAME}.file = "{path}": the file has over 64 KiB.']


def test_no_secret_is_shown(tmp_path: Path) -> None:
    secrets = [row.name for row in SETTINGS if row.secret]
    assert NAME in secrets
    file = tmp_path / "sidecar.toml"
    for name in secrets:
        file.write_text(f'[kafka]\n"bootstrap.servers" = "localhost:9092"\n"{name}" = {json.dumps(MARK)}')
        file.chmod(0o600)
        for words in (["config", "show"], ["config", "show", "--json"], ["config", "check"]):
            result = CliRunner().invoke(cli, [*words, "-c", str(file)])
            assert "Geheim" not in result.output
            if name == NAME and words[-1] == "show":
                assert f'"{NAME}" = "***"' in result.output
    file.write_text(f'[kafka]\n"{NAME}" = [{json.dumps(MARK)}]')
    with pytest.raises(ConfigError) as refused:
        load_config(file, [], {})
    assert "Geheim" not in str(refused.value)
    assert f"{NAME} = ***" in str(refused.value)


def test_a_secret_on_the_command_line_is_warned_of() -> None:
    (warning,) = [each for each in load(f"{NAME}={MARK}").warnings if NAME in each and "line" in each]
    assert "Geheim" not in warning
