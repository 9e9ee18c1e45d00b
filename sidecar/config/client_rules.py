"""``[clients.NAME]``: who may use a client name, for which topics, and at which rate. No I/O.

The controller checks at HELLO and the worker again at ATTACH, with the same rules, so a client cannot bypass them at
the worker's socket. Without any rule every caller may use every name.
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any, Final, NamedTuple

from sidecar.common.errors import Refused

ANY_TOKEN: Final = b""
"""Stands for a token's digest if a name needs no token."""
UNLISTED: Final = "daemon.unlisted_clients"


class Caller(NamedTuple):
    """The user behind a connection, as the kernel names it: its uid, and its groups when it connected; or a public
    key.
    """

    uid: int
    gids: frozenset[int] = frozenset()
    key: bytes = b""
    """The public key proved over ``tcp://``. Then ``uid`` is a number made from the key, and not a user's."""

    @property
    def words(self) -> str:
        """Description for texts: "uid 1000", or the key."""
        return f"key {self.key.hex()}" if self.key else f"uid {self.uid}"


@dataclass(frozen=True, slots=True)
class ClientRule:
    """One table, with user names, group names and token files resolved. Plain values that can be sent to workers."""

    name: str
    tokens: tuple[bytes, ...] = ()
    """SHA-256 of each accepted token; empty if none is needed."""
    uids: tuple[int, ...] | None = None
    gids: tuple[int, ...] | None = None
    keys: tuple[bytes, ...] = ()
    """CURVE public keys. If any of ``uids``, ``gids`` or ``keys`` is set, one must match; over TCP always a key."""
    allow: tuple[str, ...] | None = None
    deny: tuple[str, ...] = ()
    records_per_second: int | None = None
    bytes_per_second: int | None = None
    discards: bool = False
    """True: records over the rate fail at once. False: the client waits."""

    def to_mapping(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in self.__slots__}

    @classmethod
    def from_mapping(cls, values: Mapping[str, Any]) -> ClientRule:
        found: dict[str, Any] = {
            name: tuple(each) if isinstance(each, list) else each for name, each in values.items()
        }
        return cls(**found)

    def admits(self, caller: Caller) -> bool:
        """Whether the caller's user, one of its groups, or its key may use this name."""
        if caller.key:
            return caller.key in self.keys
        if self.uids is None and self.gids is None:
            return not self.keys
        return caller.uid in (self.uids or ()) or not caller.gids.isdisjoint(self.gids or ())

    @property
    def names_users(self) -> bool:
        """Whether the rule is limited to certain users or groups."""
        return self.uids is not None or self.gids is not None

    def topic_refusal(self, topic: str) -> str | None:
        """Why this name may not send to the topic; None if it may. ``deny`` takes precedence over ``allow``."""
        rule = next((glob for glob in self.deny if fnmatchcase(topic, glob)), None)
        if rule is not None:
            why = f'topics.deny of [clients.{self.name}] has "{rule}"'
        elif self.allow is not None and not any(fnmatchcase(topic, glob) for glob in self.allow):
            why = f"topics.allow of [clients.{self.name}] does not have it"
        else:
            return None
        return f"This daemon's configuration does not let client {self.name} send to topic {topic}: {why}."


class ClientRules:
    """All client tables of a configuration. Immutable. False if every caller is admitted under every name."""

    def __init__(self, rules: Mapping[str, ClientRule], *, denies_unlisted: bool = False) -> None:
        self._rules = dict(rules)
        self._denies_unlisted = denies_unlisted

    @classmethod
    def from_mapping(cls, values: Mapping[str, Any]) -> ClientRules:
        """Build from all settings by name, as START and CONFIGURE carry them."""
        rules = {name: ClientRule.from_mapping(each) for name, each in values["clients"].items()}
        return cls(rules, denies_unlisted=values[UNLISTED] == "deny")

    def __bool__(self) -> bool:
        return bool(self._rules) or self._denies_unlisted

    def of(self, name: str) -> ClientRule | None:
        return self._rules.get(name)

    def knows_key(self, public_key: bytes) -> bool:
        """Whether some name may be used over ``tcp://`` with this key."""
        return any(public_key in rule.keys for rule in self._rules.values())

    def token_digests(self, name: str) -> tuple[bytes, ...]:
        """Digests of every token that is valid for this name; only ANY_TOKEN if it needs none."""
        rule = self._rules.get(name)
        return rule.tokens if rule is not None and rule.tokens else (ANY_TOKEN,)

    def check_token(self, name: str, token: object, caller: Caller) -> bytes:
        """Check a token and return its digest. Raises Refused."""
        digests = self.token_digests(name)
        if digests == (ANY_TOKEN,):
            return ANY_TOKEN
        table = f"[clients.{name}] of the daemon's configuration"
        if not isinstance(token, str):
            raise Refused(
                "NOT_ADMITTED",
                f'Client "{name}" of {caller.words} gave no token, and {table} needs one: give token=.',
            )
        presented = digest_of(token)
        for each in digests:
            if hmac.compare_digest(each, presented):
                return each
        raise Refused(
            "NOT_ADMITTED",
            f'Client "{name}" of {caller.words} gave a token that is none of those of {table}.',
        )

    def refusal(self, name: str, caller: Caller) -> str | None:
        """Sentence that says why this user may not use the name; None if it may."""
        rule = self._rules.get(name)
        who = f'Client "{name}" of {caller.words} is not admitted'
        if rule is None and caller.key:
            return f"{who}: over tcp:// a name needs a table [clients.{name}] that has this key."
        if rule is None:
            if not self._denies_unlisted:
                return None
            return f"{who}: {UNLISTED} is deny, and the daemon's configuration has no [clients.{name}]."
        if rule.admits(caller):
            return None
        if caller.key:
            other = "other keys"
        elif rule.uids is None and rule.gids is None:
            other = "curve.public.keys only, and neither uids nor gids of this host"
        else:
            other = "other uids and gids"
        return f"{who}: [clients.{name}] of the daemon's configuration has {other}."

    def check_lookup(self, topics: Iterable[str], caller: Caller) -> None:
        """Raise Refused for the first topic that this user may not look up."""
        for topic in topics:
            why = self.lookup_refusal(topic, caller)
            if why is not None:
                raise Refused("TOPIC_AUTHORIZATION_FAILED", why)

    def sight_of(self, caller: Caller) -> Callable[[str], bool] | None:
        """A function that says whether this user may see a topic in a list; None if it may see all.

        A user named in tables sees the topics that those tables allow, even if it could also use a name without a
        table.
        """
        is_bound = bool(caller.key) or self._denies_unlisted
        admitting = [rule for rule in self._rules.values() if rule.admits(caller)]
        if not is_bound and not any(rule.names_users for rule in admitting):
            return None
        # Many tables have the same globs, and a list may have very many topics.
        different = {(rule.allow, rule.deny): rule for rule in admitting}.values()
        return lambda topic: any(rule.topic_refusal(topic) is None for rule in different)

    def lookup_refusal(self, topic: str, caller: Caller) -> str | None:
        """Why this user may not look up a topic; None if some name that it may use could send there.

        A lookup carries neither name nor token. If unlisted names are admitted, every caller may send to every topic.
        """
        if not self._denies_unlisted and not caller.key:
            return None
        if any(rule.admits(caller) and rule.topic_refusal(topic) is None for rule in self._rules.values()):
            return None
        return f"This daemon's configuration lets {caller.words} send to topic {topic} under no name."


def digest_of(token: str) -> bytes:
    return hashlib.sha256(token.encode()).digest()
