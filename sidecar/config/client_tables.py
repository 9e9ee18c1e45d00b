"""Turns the tables ``[clients.NAME]`` into rules: names of users and groups become numbers, and token files
are read.

The loader calls it, at the start and at a reload.
"""

from __future__ import annotations

import grp
import pwd
import re
from collections.abc import Callable, Mapping
from fnmatch import translate
from typing import Any, Final

from client_stub.zmtp.keys import KeyFileError, parse_key
from sidecar.config.client_rules import ClientRule, digest_of
from sidecar.config.secret_sources import SECRET_FILE_BYTES_MAX, SecretError, read_setting_file
from sidecar.config.setting import Value

ID_MAX: Final = 2**32 - 2
TOKENS_MAX: Final = 16
"""The most lines of a token file: an old and a new token while clients change over, and some more."""


def client_rules(clients: Mapping[str, Mapping[str, Value]]) -> tuple[dict[str, ClientRule], list[str]]:
    """(rules by name, one sentence for each fault)."""
    rules: dict[str, ClientRule] = {}
    faults: list[str] = []
    for name, keys in clients.items():
        table = f'clients."{name}"'
        rules[name] = ClientRule(
            name,
            tokens=_tokens(table, keys, faults),
            uids=_ids(f"{table}.uids", keys.get("uids"), "user", _uid_of, faults),
            gids=_ids(f"{table}.gids", keys.get("gids"), "group", _gid_of, faults),
            keys=_public_keys(f"{table}.curve.public.keys", keys.get("curve.public.keys"), faults),
            allow=_globs(f"{table}.topics.allow", keys.get("topics.allow"), faults),
            deny=_globs(f"{table}.topics.deny", keys.get("topics.deny"), faults) or (),
            records_per_second=_number(keys.get("records.per.second")),
            bytes_per_second=_number(keys.get("bytes.per.second")),
            discards=keys.get("over.limit") == "discard",
        )
        if "over.limit" in keys and not {"records.per.second", "bytes.per.second"} & keys.keys():
            faults.append(f"{table}.over.limit needs a rate: set records.per.second or bytes.per.second.")
    return rules, faults


def _tokens(table: str, keys: Mapping[str, Value], faults: list[str]) -> tuple[bytes, ...]:
    token, path = keys.get("token"), keys.get("token.file")
    if token is not None and path is not None:
        faults.append(f"{table}.token and {table}.token.file are both set: keep one of them.")
        return ()
    if token is not None:
        if not token:
            faults.append(f'{table}.token = "": give a secret, or leave it out.')
        return (digest_of(str(token)),)
    if path is None:
        return ()
    name = f"{table}.token.file"
    try:
        text = read_setting_file(name, str(path), SECRET_FILE_BYTES_MAX).decode()
    except SecretError as error:
        faults.append(str(error))
        return ()
    except UnicodeDecodeError:
        faults.append(f'{name} = "{path}": the file is not text in UTF-8.')
        return ()
    tokens = [line.rstrip("\r") for line in text.split("\n") if line.strip()]
    if not 0 < len(tokens) <= TOKENS_MAX:
        faults.append(
            f'{name} = "{path}": the file has {len(tokens)} tokens, of 1 to {TOKENS_MAX}, one in a line.'
        )
    return tuple(digest_of(each) for each in tokens)


def _ids(
    name: str, value: Value, what: str, find: Callable[[str], int], faults: list[str]
) -> tuple[int, ...] | None:
    if not isinstance(value, list):
        return None
    found: list[int] = []
    for word in value:
        if word.isascii() and word.isdigit():
            if int(word) > ID_MAX:
                faults.append(f"{name} has {word}: the largest number is {ID_MAX}.")
            found.append(int(word))
            continue
        try:
            found.append(find(word))
        except (KeyError, ValueError):
            faults.append(f'{name} has "{word}": this host has no {what} of that name.')
    return tuple(found)


def _public_keys(name: str, value: Value, faults: list[str]) -> tuple[bytes, ...]:
    found: list[bytes] = []
    for word in value if isinstance(value, list) else ():
        try:
            found.append(parse_key(word))
        except KeyFileError as error:
            faults.append(f'{name} has "{word}": {error}.')
    if value == []:
        faults.append(f"{name} is empty: name a client's public key, or leave it out.")
    return tuple(found)


def _uid_of(name: str) -> int:
    return pwd.getpwnam(name).pw_uid


def _gid_of(name: str) -> int:
    return grp.getgrnam(name).gr_gid


def _globs(name: str, value: Value, faults: list[str]) -> tuple[str, ...] | None:
    if not isinstance(value, list):
        return None
    for glob in value:
        try:
            re.compile(translate(glob))
            is_good = bool(glob) and glob.count("[") <= glob.count("]")
        except re.error:
            is_good = False
        if not is_good:
            faults.append(f'{name} has "{glob}": must be a topic\'s name, or a glob of *, ? and [ab].')
    return tuple(value)


def _number(value: Any) -> int | None:
    return value if isinstance(value, int) else None
