"""Health: the judgement that /healthz, `status` and systemd's status line share.

DaemonStatus makes it, on the controller's loop.
"""

from __future__ import annotations

import errno
import os
from typing import Final, NamedTuple

from sidecar.controller.status.note import Note, Runbook

ADVICE: Final = {
    "degraded": "A new worker starts automatically; the log has the last output of the old one.",
    "refusing": "Look at the disk of pool.path.",
    "starting": "`kafka-sidecar doctor` walks to Kafka step by step.",
    "unreachable": "Records are accepted and wait. `kafka-sidecar doctor` names the step to Kafka that fails.",
}
"""State → the advice for a judgement without its own."""
_RUNBOOKS: Final = {
    "degraded": Runbook.WORKERS_DIE,
    "refusing": Runbook.DISK_REFUSES,
    "starting": Runbook.DOWN,
    "unreachable": Runbook.KAFKA_UNREACHABLE,
}


class Health(NamedTuple):
    """A judgement. ``state`` is running, degraded, refusing, starting, unreachable or draining; ``sentence`` says why
    and ``advice`` what to do. Both are empty when all is well.
    """

    state: str
    sentence: str
    advice: str = ""
    notes: tuple[Note, ...] = ()
    """The parts of the sentence, if it has more than one cause."""

    @property
    def remedy(self) -> str:
        """The advice, or the default one of the state."""
        return self.advice or ADVICE.get(self.state, "")

    @property
    def runbook(self) -> Runbook:
        """The page about its first cause."""
        if self.notes:
            return self.notes[0].runbook
        return _RUNBOOKS.get(self.state, Runbook.NONE)

    @property
    def is_healthy(self) -> bool:
        return self.state == "running"

    @property
    def takes_records(self) -> bool:
        """Whether records are taken. A single worker or broker that is down costs throughput, but not the service."""
        return self.state in {"running", "degraded"}


def workers_missing(missing: int, wanted: int, last_death: str) -> Health:
    """Some workers are ready and ``missing`` ones are not. ``last_death`` is empty while none has died."""
    are = "is" if missing == 1 else "are"
    who = f"{missing} of {wanted} workers {are}"
    if last_death:
        return Health("degraded", f"{who} down. {last_death}")
    advice = (
        "It is starting; the log says when it is ready."
        if missing == 1
        else "They are starting; the log says when each is ready."
    )
    return Health("degraded", f"{who} not ready yet.", advice)


def disk_sentence(code: int, pool_path: str) -> str:
    """Why no record is accepted while the log next to ``pool.path`` cannot be written (pool.sync = accept)."""
    if code in {errno.ENOSPC, errno.EDQUOT}:
        return f"The disk of pool.path {pool_path} is full: no record is accepted until it has room again."
    return (
        f"The disk of pool.path {pool_path} failed ({os.strerror(code)}): no record is accepted any more; records "
        "accepted before are still delivered. Repair the disk, then restart the daemon."
    )
