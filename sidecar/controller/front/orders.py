"""Orders: pause, resume and drain. Checks permissions, and keeps the present state across daemons.

The Daemon owns it; ClientAnswers calls it for an order, on the controller's loop.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Awaitable, Callable
from typing import Any, Final

from sidecar.common.errors import Refused
from sidecar.common.pauses import Pauses
from sidecar.common.wording import counted, moment
from sidecar.config.client_rules import Caller
from sidecar.controller.rundir.published import read_json
from sidecar.controller.rundir.run_dir import RunDir

log = logging.getLogger(__name__)

TOPICS_NAMED: Final = 5
"""The most topics named in the notice about paused topics."""


class Orders:
    """Carries out orders. ``use`` sends the present state to the workers, and returns a sentence for each worker that
    has not confirmed it in time. Belongs to the controller's loop.
    """

    def __init__(self, run_dir: RunDir, *, use: Callable[[], Awaitable[list[str]]]) -> None:
        self._run_dir = run_dir
        self._use = use
        self.pauses = Pauses.from_mapping(read_json(run_dir.files.pauses_json))
        """Includes orders to an earlier daemon that crashed or handed over."""
        if self.pauses:
            log.warning("Still stopped by an operator: %s.", self.sentence())

    async def carry_out(self, verb: str, topics: list[str], caller: Caller) -> list[object]:
        """Carry out an order. Returns the fields of ORDER_REPLY once all workers have confirmed it. Raises Refused,
        and changes nothing then.
        """
        if caller.uid not in (0, os.geteuid()):
            raise Refused("NOT_ALLOWED", "Only the daemon's user and root may pause, resume or drain.")
        now_ms = time.time_ns() // 1_000_000
        if verb == "pause" and topics:
            changed = self.pauses.pause(topics, now_ms)
        elif verb == "resume":
            changed = self.pauses.resume(topics)
        elif verb == "drain":
            changed = self.pauses.drain(now_ms)
        else:
            raise Refused("MALFORMED_FRAME", f"There is no order {verb!r} for {len(topics)} topics.")
        late: list[str] = []
        if changed != self.pauses:
            try:
                self._run_dir.files.publish_pauses(changed.to_mapping())
            except OSError as error:
                raise Refused(
                    "FAILED", f"The order cannot be kept in {self._run_dir.path}: {error}."
                ) from None
            self.pauses = changed
            log.warning("By order of uid %d (%s): %s.", caller.uid, verb, self.sentence())
            late = await self._use()
        return [self.pauses.to_mapping(), late]

    def end(self) -> bool:
        """End all pauses, as a stop delivers all accepted records. Returns True if there was any."""
        ended, self.pauses = bool(self.pauses), Pauses()
        return ended

    def sentence(self) -> str:
        parts = []
        if self.pauses.drained_since_ms is not None:
            parts.append("no records are accepted")
        if self.pauses.topics:
            parts.append(f"records of {', '.join(map(ascii, sorted(self.pauses.topics)))} are not sent")
        return " and ".join(parts) or "records are accepted and sent"

    def notices(self) -> list[str]:
        """A sentence for the operator while topics are paused. A drain is part of the daemon's state instead."""
        topics = self.pauses.topics
        if not topics:
            return []
        named = ", ".join(ascii(each)[1:-1] for each in sorted(topics)[:TOPICS_NAMED])
        if len(topics) > TOPICS_NAMED:
            named += f" and {counted(len(topics) - TOPICS_NAMED, 'more topic')}"
        what = "topic" if len(topics) == 1 else "topics"
        return [
            f"paused by an operator since {moment(min(topics.values()))}: {what} {named}. Records are accepted, "
            "not sent, and fail after delivery.timeout.ms. `kafka-sidecar resume` lets them continue."
        ]

    def shown(self) -> dict[str, Any]:
        """The keys for status and page; empty while nothing is stopped."""
        return {"pauses": self.pauses.to_mapping()} if self.pauses else {}
