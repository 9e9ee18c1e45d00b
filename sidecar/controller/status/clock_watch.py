"""ClockWatch: notices steps of the wall clock, and times in which this process did not run. Sans-IO.

No deadline depends on the wall clock. But records get their timestamps from it, and tokens and certificates expire by
it, so a step is logged.
"""

from __future__ import annotations

import logging
from typing import Final

from sidecar.common.wording import moment

log = logging.getLogger(__name__)

STEP_MS_MIN: Final = 2_000.0
"""A clock that is slewed moves by less than this between two calls."""
STALL_MS_MIN: Final = 5_000.0
"""A busy machine delays a call by less than this."""
SHOWN_MS: Final = 600_000.0
"""How long status shows the last step and the last stall."""


class ClockWatch:
    """``tick`` is called once a second. ``now_ms`` is monotonic, ``wall_ms`` Unix time."""

    def __init__(self, now_ms: float, wall_ms: float) -> None:
        self._now_ms = now_ms
        self._wall_ms = wall_ms
        self._shown: list[tuple[float, str]] = []
        """(monotonic time in ms, sentence with the Unix time)."""
        self.steps = 0
        self.stalled_ms = 0.0

    def tick(self, now_ms: float, wall_ms: float, interval_ms: float) -> float:
        """Compare with the last call; this one was due ``interval_ms`` after it. Returns by how many ms it is late."""
        late_ms = now_ms - self._now_ms - interval_ms
        step_ms = wall_ms - self._wall_ms - (now_ms - self._now_ms)
        self._now_ms, self._wall_ms = now_ms, wall_ms
        if self._shown:
            self._shown = [each for each in self._shown if now_ms - each[0] < SHOWN_MS]
        if late_ms >= STALL_MS_MIN:
            self.stalled_ms += late_ms
            self._log(
                now_ms,
                f"The controller did not run for {late_ms / 1e3:.0f} s: the machine was stopped, or the "
                "controller alone and the workers continued.",
            )
        if abs(step_ms) >= STEP_MS_MIN:
            self.steps += 1
            way = "forward" if step_ms > 0 else "back"
            self._log(
                now_ms,
                f"The wall clock has stepped {way} by {abs(step_ms) / 1e3:,.0f} s. No deadline depends on it, but "
                "records that bring no timestamp get it; look at the host's time service.",
            )
        return late_ms

    def notices(self) -> list[str]:
        return [text for _, text in self._shown]

    def _log(self, now_ms: float, text: str) -> None:
        log.warning("%s", text)
        self._shown.append((now_ms, f"{moment(self._wall_ms)}: {text}"))
