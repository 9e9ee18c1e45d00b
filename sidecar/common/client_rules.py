"""``[clients.NAME]``: who may come under a name, to which topics, and how fast. No I/O.

The controller asks at HELLO and the worker again at ATTACH, with the same rules: nobody passes by going to the
worker's socket directly. Without any rule everybody is admitted under every name.
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
"""In place of a token's digest where a name needs none."""
UNLISTED: Final = "daemon.unlisted_clients"


class Caller(NamedTuple):
    """A user behind a connection, as the kernel names it: its uid, and its groups when it connected; or a key."""

    uid: int
    gids: frozenset[int] = frozenset()
    key: bytes = b""
    """The public key that it has proved over ``tcp://``; ``uid`` is then a number made of it, and no user's."""

    @property
    def words(self) -> str:
        """For a reader: "uid 1000", or the key."""
        return f"key {self.key.hex()}" if self.key else f"uid {self.uid}"


@dataclass(frozen=True, slots=True)
class ClientRule:
    """One table, with user names, group names and token files resolved. Plain values, to be sent to workers."""

    name: str
    tokens: tuple[bytes, ...] = ()
    """SHA-256 of each token that is accepted; empty: none is needed."""
    uids: tuple[int, ...] | None = None
    gids: tuple[int, ...] | None = None
    keys: tuple[bytes, ...] = ()
    """Public keys of CURVE. One of ``uids``, ``gids`` or ``keys`` must fit where any is set; over TCP always a key."""
    allow: tuple[str, ...] | None = None
    deny: tuple[str, ...] = ()
    records_per_second: int | None = None
    bytes_per_second: int | None = None
    discards: bool = False
    """Over its rate its records fail at once; else the client waits."""

    def to_mapping(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in self.__slots__}

    @classmethod
    def from_mapping(cls, values: Mapping[str, Any]) -> ClientRule:
        found: dict[str, Any] = {
            name: tuple(each) if isinstance(each, list) else each for name, each in values.items()
        }
        return cls(**found)

    def admits(self, caller: Caller) -> bool:
        """Whether its user, or one of its groups, may use this name."""
        if caller.key:
            return caller.key in self.keys
        if self.uids is None and self.gids is None:
            return not self.keys
        return caller.uid in (self.uids or ()) or not caller.gids.isdisjoint(self.gids or ())

    @property
    def names_users(self) -> bool:
        """Whether it is for certain users or groups, and not for everybody."""
        return self.uids is not None or self.gids is not None

    def topic_refusal(self, topic: str) -> str | None:
        """Why this name may not send to the topic; None: it may. ``deny`` is stronger than ``allow``."""
        rule = next((glob for glob in self.deny if fnmatchcase(topic, glob)), None)
        if rule is not None:
            why = f'topics.deny of [clients.{self.name}] has "{rule}"'
        elif self.allow is not None and not any(fnmatchcase(topic, glob) for glob in self.allow):
            why = f"topics.allow of [clients.{self.name}] does not have it"
        else:
            return None
        return f"This daemon's configuration does not let client {self.name} send to topic {topic}: {why}."


class ClientRules:
    """All tables of a configuration. Immutable; false when everybody is admitted."""

    def __init__(self, rules: Mapping[str, ClientRule], *, denies_unlisted: bool = False) -> None:
        self._rules = dict(rules)
        self._denies_unlisted = denies_unlisted

    @classmethod
    def from_mapping(cls, values: Mapping[str, Any]) -> ClientRules:
        """From all settings by name, as START and CONFIGURE bring them."""
        rules = {name: ClientRule.from_mapping(each) for name, each in values["clients"].items()}
        return cls(rules, denies_unlisted=values[UNLISTED] == "deny")

    def __bool__(self) -> bool:
        return bool(self._rules) or self._denies_unlisted

    def of(self, name: str) -> ClientRule | None:
        return self._rules.get(name)

    def knows_key(self, public_key: bytes) -> bool:
        """Whether some name may come over ``tcp://`` with this key."""
        return any(public_key in rule.keys for rule in self._rules.values())

    def token_digests(self, name: str) -> tuple[bytes, ...]:
        """Of every token that opens this name; ANY_TOKEN alone where it needs none."""
        rule = self._rules.get(name)
        return rule.tokens if rule is not None and rule.tokens else (ANY_TOKEN,)

    def check_token(self, name: str, token: object, caller: Caller) -> bytes:
        """The digest of the token that opened the name. Raises Refused."""
        digests = self.token_digests(name)
        if digests == (ANY_TOKEN,):
            return ANY_TOKEN
        presented = digest_of(token) if isinstance(token, str) else ANY_TOKEN
        for each in digests:
            if hmac.compare_digest(each, presented):
                return each
        raise Refused(
            "NOT_ADMITTED",
            f'Client "{name}" of {caller.words} needs the token that [clients.{name}] of the daemon\'s '
            "configuration names.",
        )

    def refusal(self, name: str, caller: Caller) -> str | None:
        """Why this user may not come under this name, in a sentence; None: it may."""
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
        """Raises Refused for the first topic that this user may not let us wait for."""
        for topic in topics:
            why = self.lookup_refusal(topic, caller)
            if why is not None:
                raise Refused("TOPIC_AUTHORIZATION_FAILED", why)

    def sight_of(self, caller: Caller) -> Callable[[str], bool] | None:
        """Whether this user may see a topic of that name in a list; None: all of them.

        A user that tables name sees what those let it send to, also where it could come under a name without a table.
        """
        is_bound = bool(caller.key) or self._denies_unlisted
        admitting = [rule for rule in self._rules.values() if rule.admits(caller)]
        if not is_bound and not any(rule.names_users for rule in admitting):
            return None
        # Tables often have the same globs, and a list may have very many topics.
        different = {(rule.allow, rule.deny): rule for rule in admitting}.values()
        return lambda topic: any(rule.topic_refusal(topic) is None for rule in different)

    def lookup_refusal(self, topic: str, caller: Caller) -> str | None:
        """Why this user may not let us wait for a topic; None: some name that it may use could send there.

        A question brings neither name nor token. Where unlisted names may come, everybody may send to every topic.
        """
        if not self._denies_unlisted and not caller.key:
            return None
        if any(rule.admits(caller) and rule.topic_refusal(topic) is None for rule in self._rules.values()):
            return None
        return f"This daemon's configuration lets {caller.words} send to topic {topic} under no name."


def digest_of(token: str) -> bytes:
    return hashlib.sha256(token.encode()).digest()
