"""Questions about topics (TOPICS): checks which topics a caller may ask for and see. Its client name is not known."""

from __future__ import annotations

import os
from collections.abc import Awaitable, Callable

from sidecar.common.errors import Code
from sidecar.config.client_rules import Caller, ClientRules

AskCluster = Callable[[list[str] | None, float | None], Awaitable[list[list[object]]]]


async def answer_topics(
    ask: AskCluster, rules: ClientRules, names: list[str] | None, max_wait_ms: float | None, caller: Caller
) -> list[list[object]]:
    """The list of TOPICS_REPLY as this user may see it. The daemon's user and root see all.

    Waiting for a topic may create it, so the rules are checked first. Raises Refused for the first topic that the
    caller may not send to.
    """
    if names is not None and max_wait_ms is not None:
        rules.check_lookup(names, caller)
        return await ask(names, max_wait_ms)
    sees = rules.sight_of(caller) if caller.key or caller.uid not in (0, os.geteuid()) else None
    if sees is None:
        return await ask(names, None)
    if names is None:
        return [row for row in await ask(None, None) if sees(str(row[0]))]
    seen: list[str] = []
    hidden: list[list[object]] = []
    for name in names:
        if sees(name):
            seen.append(name)
        else:
            hidden.append([name, int(Code.TOPIC_AUTHORIZATION_FAILED), []])
    return (await ask(seen, None) if seen else []) + hidden
