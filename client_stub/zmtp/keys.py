"""Key files of CURVE, for both server and client: lines ``secret-key = HEX`` and, in a client's, ``server-key = HEX``.

Read when a stub is made or its io thread connects, when the daemon loads its configuration, and by `keygen`.

Keys are 32 bytes, written as 64 hexadecimal digits. A file belongs to its user or to root, and others may not read it;
the group may read root's, as Kubernetes gives Secrets to a pod. Nothing here needs PyNaCl.

A server's file may have two secret keys while clients change from one to the other.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Callable
from typing import Final, NamedTuple

KEY_BYTES: Final = 32
FILE_BYTES_MAX: Final = 4 << 10
SERVER_KEYS_MAX: Final = 2
"""How many secret keys a server may have. Each more is one more attempt to decrypt the HELLO of a stranger."""
_NAMES: Final = ("secret-key", "server-key")


class KeyFileError(ValueError):
    """A key or its file cannot be used. The text is one sentence and contains no secret."""


class KeyFile(NamedTuple):
    """The contents of a key file. ``server_key`` is empty in a server's, and ``earlier_key`` in most."""

    secret_key: bytes
    server_key: bytes
    earlier_key: bytes = b""
    """A server's second secret key, for clients that do not know the first one yet."""


class WatchedKeyFile:
    """The present keys of a file. Each call checks it by a stat and reads it again when it has changed.

    When a changed file cannot be used, ``complain`` is called once with a sentence, and the earlier keys stay in use.
    Any thread may call ``keys``; two that do so at the same time may both complain.
    """

    def __init__(self, path: str, *, is_client: bool, complain: Callable[[str], object]) -> None:
        """Raises KeyFileError for a file that cannot be used."""
        self._path = path
        self._is_client = is_client
        self._complain = complain
        self._seen = _signature(path)
        self._keys = read_key_file(path, is_client=is_client)

    def keys(self) -> KeyFile:
        seen = _signature(self._path)
        if seen != self._seen:
            self._seen = seen
            try:
                self._keys = read_key_file(self._path, is_client=self._is_client)
            except KeyFileError as error:
                self._complain(f"{error} The earlier keys stay in use.")
        return self._keys


def _signature(path: str) -> tuple[int, ...]:
    """A value that changes whenever the file may have changed."""
    try:
        found = os.stat(path)  # noqa: PTH116 - each process of a fleet imports this, and not pathlib
    except OSError as error:
        return (error.errno or 0,)
    return found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns


def parse_key(text: str) -> bytes:
    """The 32 bytes of a key written as 64 hexadecimal digits. Raises KeyFileError."""
    try:
        key = bytes.fromhex(text)
    except ValueError:
        key = b""
    if len(key) != KEY_BYTES or len(text) != 2 * KEY_BYTES:
        raise KeyFileError(f"a key must be {2 * KEY_BYTES} hexadecimal digits")
    return key


def read_key_file(path: str, *, is_client: bool) -> KeyFile:
    """Read a key file. Raises KeyFileError for a file that is missing, open to others, or has other lines.

    A server's may have ``secret-key`` twice: the key that new clients are to use comes first.
    """
    try:
        # Without O_NONBLOCK, opening a named pipe would block.
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
    earlier_key = b""
    for number, line in enumerate(data.decode("latin-1").splitlines(), 1):
        name, equals, value = (part.strip() for part in line.partition("="))
        if not name or name.startswith("#"):
            continue
        is_earlier = name == _NAMES[0] and name in keys and not is_client and not earlier_key
        if not equals or name not in _NAMES or (name in keys and not is_earlier):
            raise KeyFileError(
                f"Line {number} of the key file {path} is none of: {' = …, '.join(_NAMES)} = …"
                + (f", or one key more than {1 if is_client else SERVER_KEYS_MAX}." if name in keys else ".")
            )
        try:
            key = parse_key(value)
        except KeyFileError as error:
            raise KeyFileError(f"Line {number} of the key file {path} cannot be used: {error}.") from None
        if is_earlier:
            earlier_key = key
        else:
            keys[name] = key
    missing = next((name for name in _NAMES[: 1 + is_client] if name not in keys), None)
    if missing is not None:
        raise KeyFileError(
            f"The key file {path} has no line {missing} = …, with {2 * KEY_BYTES} hexadecimal digits."
        )
    return KeyFile(keys["secret-key"], keys.get("server-key", b""), earlier_key)


def key_file_text(secret_key: bytes, public_key: bytes, server_key: bytes = b"") -> str:
    """The contents of a new key file."""
    text = f"# public-key {public_key.hex()}\nsecret-key = {secret_key.hex()}\n"
    return text + (f"server-key = {server_key.hex()}\n" if server_key else "")
