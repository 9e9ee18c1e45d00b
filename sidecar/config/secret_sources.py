"""Sources of secrets: the setting itself, the file that ``NAME.file`` names, and ``${VARIABLE}`` in paths.

The loader, and whoever uses a secret later: in a thread where a mount may hang, never on a loop.

The same rule holds for ``ssl.*`` and ``sasl.*``. A path may contain ``${CREDENTIALS_DIRECTORY}/name`` (systemd's
LoadCredential). A secret itself is never expanded, because a password may contain ``${``. The file is read at each
use, so that a new password counts from the next connection on.
"""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Mapping
from typing import Any, Final

SECRET_FILE_BYTES_MAX: Final = 64 << 10
"""Limit of a secret's file: a longer one is no password or token."""
HIDDEN: Final = "***"
"""Replaces a secret in all output."""

_VARIABLE: Final = re.compile(r"\$\{([^}]*)\}")


class SecretError(ValueError):
    """A secret cannot be read. The text is one sentence with setting and file, and never contains the secret."""


def expand_path(path: str, environment: Mapping[str, str]) -> str:
    """Expand each ``${VARIABLE}`` in ``path``. Raises SecretError for one that is not set."""

    def value_of(found: re.Match[str]) -> str:
        value = environment.get(found[1])
        if value:
            return value
        if found[1] == "CREDENTIALS_DIRECTORY":
            hint = "systemd sets it for a unit with LoadCredential="
        else:
            hint = "set it, or write the path out"
        raise SecretError(f"the environment variable {found[1]} is not set; {hint}")

    return _VARIABLE.sub(value_of, path)


def read_secret(values: Mapping[str, Any], name: str) -> str | None:
    """The present secret of the setting ``name``: its value, else the content of the file of ``name.file``; None for
    neither.

    Line ends at the end of the file are removed. Raises SecretError for a file that cannot be used.
    """
    path = values.get(f"{name}.file")
    if not path:
        value = values.get(name)
        return None if value is None else str(value)
    file_setting = f"{name}.file"
    data = read_setting_file(file_setting, str(path), SECRET_FILE_BYTES_MAX)
    try:
        text = data.decode("utf-8").rstrip("\r\n")
    except UnicodeDecodeError:
        raise SecretError(f'{file_setting} = "{path}": the file is not text in UTF-8.') from None
    if not text:
        raise SecretError(f'{file_setting} = "{path}": the file has no text.')
    return text


def read_setting_file(setting: str, path: str, bytes_max: int) -> bytes:
    """All bytes of the regular file that a setting names. Never blocks, as a pipe could.

    Raises SecretError for a file that is missing, unreadable, empty, not regular, or over ``bytes_max``.
    """
    source = f'{setting} = "{path}"'
    if "\0" in path:
        raise SecretError(f"{setting}: a path has no null characters.")
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        try:
            if not stat.S_ISREG(os.fstat(fd).st_mode):
                raise SecretError(f"{source}: this is not a regular file.")
            with os.fdopen(fd, "rb", closefd=False) as file:
                data = file.read(bytes_max + 1)
        finally:
            os.close(fd)
    except FileNotFoundError:
        raise SecretError(f"{source}: there is no such file.") from None
    except OSError as error:
        raise SecretError(f"{source}: the file cannot be read ({error.strerror}).") from None
    if not data:
        raise SecretError(f"{source}: the file is empty.")
    if len(data) > bytes_max:
        raise SecretError(f"{source}: the file has over {bytes_max >> 10} KiB.")
    return data


def secret_faults(values: Mapping[str, Any]) -> list[str]:
    """One sentence for each ``NAME.file`` setting that cannot be used now."""
    faults: list[str] = []
    for file_name, path in values.items():
        if not file_name.endswith(".file") or not path:
            continue
        name = file_name.removesuffix(".file")
        if values.get(name) is not None:
            faults.append(f"{name} and {file_name} are both set: keep one of them.")
            continue
        try:
            read_secret(values, name)
        except SecretError as error:
            faults.append(str(error))
    return faults
