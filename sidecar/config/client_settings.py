"""The keys of ``[clients.NAME]``, one row each. :mod:`sidecar.config.client_tables` makes rules of them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from sidecar.config.setting import LONG_MAX, Setting, ValueKind, choice, integer

CLIENT_KEYS: Final[Mapping[str, Setting]] = {
    row.name: row
    for row in (
        Setting("token", ValueKind.TEXT, None, "Secret that this client name must present.", secret=True),
        Setting(
            "token.file",
            ValueKind.TEXT,
            None,
            "File of that secret. Each line is accepted: the old and the new one while clients change over.",
            is_path=True,
        ),
        Setting("uids", ValueKind.IDS, None, "Users that may use this name."),
        Setting("gids", ValueKind.IDS, None, "Groups whose members may use it too."),
        Setting(
            "curve.public.keys",
            ValueKind.LIST,
            None,
            "Public keys of clients that may use this name over `daemon.listen`; with it and neither `uids` nor "
            "`gids`, no user of this host may.",
        ),
        Setting(
            "topics.allow", ValueKind.LIST, None, "Topics that it may send to, as names or globs; unset: all."
        ),
        Setting(
            "topics.deny",
            ValueKind.LIST,
            None,
            "Topics that it may not send to, also where `topics.allow` has them.",
        ),
        integer(
            "records.per.second",
            None,
            1,
            LONG_MAX,
            "Records per second of all clients of this name together, over all workers.",
        ),
        integer("bytes.per.second", None, 1, LONG_MAX, "The same by bytes; both may be set."),
        choice(
            "over.limit",
            None,
            ("block", "discard"),
            "Over its rate. block (unset): it is held, as by a topic's rate. discard: its records fail at once with "
            "THROTTLING_QUOTA_EXCEEDED, and are counted by topic.",
        ),
    )
}
"""Keys of ``[clients.NAME]``. An unset key means that there is no such rule."""
