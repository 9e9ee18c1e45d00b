"""Key files of CURVE: read as they were written, and each fault is one sentence without a secret."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from client_stub.zmtp.keys import (
    FILE_BYTES_MAX,
    KeyFile,
    KeyFileError,
    WatchedKeyFile,
    key_file_text,
    read_key_file,
)
from tests.tools import ROOT_USER, needs

SECRET, PUBLIC, SERVER = (bytes([number]) * 32 for number in (1, 2, 3))
GOOD = key_file_text(SECRET, PUBLIC, SERVER)


def written(folder: Path, text: str, mode: int = 0o600) -> Path:
    path = folder / "client.key"
    path.write_text(text)
    path.chmod(mode)
    return path


def test_a_key_file_is_read_as_it_was_written(tmp_path: Path) -> None:
    assert read_key_file(str(written(tmp_path, GOOD)), is_client=True) == KeyFile(SECRET, SERVER)
    text = key_file_text(SECRET, PUBLIC)
    assert read_key_file(str(written(tmp_path, text)), is_client=False) == KeyFile(SECRET, b"")


def test_a_server_has_two_keys_at_most_and_a_client_one(tmp_path: Path) -> None:
    two, three = (
        "".join(key_file_text(bytes([number]) * 32, PUBLIC) for number in range(1, count + 1))
        for count in (2, 3)
    )
    found = read_key_file(str(written(tmp_path, two)), is_client=False)
    assert (found.secret_key, found.earlier_key) == (SECRET, b"\2" * 32)
    with pytest.raises(KeyFileError, match=r"Line 6 .* one key more than 2"):
        read_key_file(str(written(tmp_path, three)), is_client=False)
    with pytest.raises(KeyFileError, match=r"Line 4 .* one key more than 1"):
        read_key_file(str(written(tmp_path, two)), is_client=True)


def test_a_watched_file_is_read_again_when_it_has_changed(tmp_path: Path) -> None:
    said: list[str] = []
    path = written(tmp_path, GOOD)
    watched = WatchedKeyFile(str(path), is_client=True, complain=said.append)
    assert watched.keys() is watched.keys()
    path.write_text(key_file_text(b"\7" * 32, PUBLIC, SERVER))
    assert watched.keys().secret_key == b"\7" * 32
    path.write_text("half of a f")
    assert watched.keys().secret_key == watched.keys().secret_key == b"\7" * 32
    assert len(said) == 1 and said[0].endswith("The earlier keys stay in use.")
    path.unlink()
    written(tmp_path, GOOD)
    assert watched.keys().secret_key == SECRET and len(said) == 1


@pytest.mark.parametrize(
    ("text", "mode", "words"),
    [
        (GOOD, 0o644, "has mode 0644, so others could use it: chmod 600"),
        (GOOD, 0o620, "has mode 0620"),
        ("", 0o600, "not a regular file of 1 to 4096 bytes"),
        ("#" * (FILE_BYTES_MAX + 1), 0o600, "not a regular file of 1 to 4096 bytes"),
        (
            "secret-key = 12\n",
            0o600,
            "Line 1 of the key file .* cannot be used: a key must be 64 hexadecimal",
        ),
        (GOOD + "secret-key = " + "0" * 64, 0o600, "Line 4 .* is none of"),
        ("public = 1\n", 0o600, "Line 1 .* is none of: secret-key = …, server-key = …"),
        (key_file_text(SECRET, PUBLIC), 0o600, "has no line server-key = …"),
    ],
)
def test_a_key_file_that_cannot_be_used_is_one_sentence(
    tmp_path: Path, text: str, mode: int, words: str
) -> None:
    path = written(tmp_path, text, mode)
    with pytest.raises(KeyFileError, match=words) as caught:
        read_key_file(str(path), is_client=True)
    assert SECRET.hex() not in str(caught.value)


def test_a_missing_key_file_and_a_pipe_are_one_sentence_and_no_wait(tmp_path: Path) -> None:
    with pytest.raises(KeyFileError, match="cannot be read"):
        read_key_file(str(tmp_path / "none"), is_client=True)
    with pytest.raises(KeyFileError, match="no null characters"):
        read_key_file("\0", is_client=True)
    os.mkfifo(tmp_path / "pipe", 0o600)
    with pytest.raises(KeyFileError, match="not a regular file"):
        read_key_file(str(tmp_path / "pipe"), is_client=True)


@needs(ROOT_USER)
def test_a_key_file_of_another_user_is_refused_and_roots_may_be_its_groups(tmp_path: Path) -> None:
    path = written(tmp_path, GOOD, 0o440)
    assert read_key_file(str(path), is_client=True).secret_key == SECRET
    path.chmod(0o600)
    os.chown(path, 31_001, 31_001)
    with pytest.raises(KeyFileError, match="belongs to uid 31001"):
        read_key_file(str(path), is_client=True)
