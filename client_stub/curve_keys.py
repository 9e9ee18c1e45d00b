"""Key files of CURVE, for daemon and stub alike: lines ``secret-key = HEX`` and, of a client, ``server-key = HEX``.

Keys are 32 bytes, written as 64 hexadecimal digits. A file belongs to its user or to root, and others may not read it;
a file of root may be read by its group, as Kubernetes gives Secrets to a pod. Nothing here needs PyNaCl.
"""

from __future__ import annotations

import os
import stat
from typing import Final, NamedTuple

KEY_BYTES: Final = 32
FILE_BYTES_MAX: Final = 4 << 10
KEY_FILE_VARIABLE: Final = "KAFKA_SIDECAR_CURVE_KEY_FILE"
TCP_PREFIX: Final = "tcp://"
MISSING_TEXT: Final = "tcp:// needs PyNaCl, which is not installed: pip install 'kafka-sidecar[curve]'"
_NAMES: Final = ("secret-key", "server-key")


class KeyFileError(ValueError):
    """A key or its file cannot be used; the text is one sentence and has no secret."""


class KeyFile(NamedTuple):
    """Contents of a file. ``server_key`` is empty in a daemon's own."""

    secret_key: bytes
    server_key: bytes


def parse_key(text: str) -> bytes:
    """32 bytes of 64 hexadecimal digits. Raises KeyFileError."""
    try:
        key = bytes.fromhex(text)
    except ValueError:
        key = b""
    if len(key) != KEY_BYTES or len(text) != 2 * KEY_BYTES:
        raise KeyFileError(f"a key must be {2 * KEY_BYTES} hexadecimal digits")
    return key


def read_key_file(path: str, *, is_client: bool) -> KeyFile:
    """Raises KeyFileError for a file that is missing, open to others, or has other lines."""
    try:
        # Without O_NONBLOCK a pipe would let us wait.
        fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        try:
            found = os.fstat(fd)
            data = os.read(fd, FILE_BYTES_MAX + 1) if stat.S_ISREG(found.st_mode) else b""
        finally:
            os.close(fd)
    except OSError as error:
        raise KeyFileError(f"The key file {path} cannot be read ({error.strerror}).") from None
    except ValueError:
        raise KeyFileError("The path of a key file has no null characters.") from None
    if not stat.S_ISREG(found.st_mode) or not 0 < len(data) <= FILE_BYTES_MAX:
        raise KeyFileError(f"The key file {path} is not a regular file of 1 to {FILE_BYTES_MAX} bytes.")
    if found.st_uid not in {0, os.geteuid()}:
        raise KeyFileError(f"The key file {path} belongs to uid {found.st_uid}, not to this user or root.")
    forbidden = 0o037 if found.st_uid == 0 else 0o077
    if found.st_mode & forbidden:
        mode = stat.S_IMODE(found.st_mode)
        raise KeyFileError(
            f"The key file {path} has mode {mode:04o}, so others could use it: chmod 600 {path}."
        )
    keys: dict[str, bytes] = {}
    for number, line in enumerate(data.decode("latin-1").splitlines(), 1):
        name, equals, value = (part.strip() for part in line.partition("="))
        if not name or name.startswith("#"):
            continue
        if not equals or name not in _NAMES or name in keys:
            raise KeyFileError(
                f"Line {number} of the key file {path} is none of: {' = …, '.join(_NAMES)} = …."
            )
        try:
            keys[name] = parse_key(value)
        except KeyFileError as error:
            raise KeyFileError(f"Line {number} of the key file {path} cannot be used: {error}.") from None
    missing = next((name for name in _NAMES[: 1 + is_client] if name not in keys), None)
    if missing is not None:
        raise KeyFileError(
            f"The key file {path} has no line {missing} = …: kafka-sidecar keygen writes such files."
        )
    return KeyFile(keys["secret-key"], keys.get("server-key", b""))


def key_file_text(secret_key: bytes, public_key: bytes, server_key: bytes = b"") -> str:
    """The contents of a new key file."""
    text = f"# public-key {public_key.hex()}\nsecret-key = {secret_key.hex()}\n"
    return text + (f"server-key = {server_key.hex()}\n" if server_key else "")


def split_address(address: str) -> tuple[str, int]:
    """Host and port of ``tcp://host:port``; the host may be empty, or a v6 address in brackets. Raises ValueError."""
    host, colon, port = address.removeprefix(TCP_PREFIX).rpartition(":")
    is_v6 = host.startswith("[") and host.endswith("]")
    is_port = port.isascii() and port.isdigit() and 0 < int(port) <= 0xFFFF
    if not address.startswith(TCP_PREFIX) or not colon or not is_port or (":" in host and not is_v6):
        raise ValueError(f"{address} is not tcp://host:port.")
    return (host[1:-1] if is_v6 else host), int(port)


def join_address(host: str, port: int) -> str:
    return f"{TCP_PREFIX}[{host}]:{port}" if ":" in host else f"{TCP_PREFIX}{host}:{port}"
