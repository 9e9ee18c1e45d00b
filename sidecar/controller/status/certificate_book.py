"""CertificateBook: reports when the certificates of the connections to Kafka expire. Sans-IO."""

from __future__ import annotations

import logging
import math
from collections.abc import Iterable
from typing import Final, NamedTuple

from sidecar.common.wording import counted

log = logging.getLogger(__name__)

SOON_S: Final = 14 * 86_400.0
"""A certificate that expires within this time is logged once a day, and shown in status."""
LINE_INTERVAL_S: Final = 86_400.0


class Expiry(NamedTuple):
    """The end of a certificate. ``what`` names its owner, with the setting or broker; ``ends_s`` is Unix time."""

    what: str
    ends_s: float


class CertificateBook:
    """Belongs to the controller's loop."""

    def __init__(self) -> None:
        self._expiries: tuple[Expiry, ...] = ()
        self._next_line_s: dict[str, float] = {}

    def tick(self, expiries: Iterable[Expiry], wall_s: float) -> bool:
        """Replace the expiries, and log those that are near or have come. Returns True if one was logged."""
        self._expiries = tuple(expiries)
        if not self._expiries and not self._next_line_s:
            return False
        has_line = False
        known = {each.what for each in self._expiries}
        self._next_line_s = {what: due for what, due in self._next_line_s.items() if what in known}
        for each in self._expiries:
            if each.ends_s - wall_s < SOON_S and wall_s >= self._next_line_s.get(each.what, 0.0):
                has_line = True
                next_s = wall_s + LINE_INTERVAL_S
                self._next_line_s[each.what] = min(next_s, each.ends_s) if each.ends_s > wall_s else next_s
                log.warning("%s", _sentence(each, wall_s))
        return has_line

    def notices(self, wall_s: float, *, have_ended: bool) -> list[str]:
        """Sentences about those that have expired, or about those that soon will."""
        near = [each for each in self._expiries if each.ends_s - wall_s < SOON_S]
        return [_sentence(each, wall_s) for each in near if (each.ends_s <= wall_s) is have_ended]

    def to_list(self) -> list[dict[str, object]]:
        """The rows for status and metrics."""
        return [{"certificate": each.what, "ends_seconds": each.ends_s} for each in self._expiries]


def _sentence(expiry: Expiry, wall_s: float) -> str:
    left_s = expiry.ends_s - wall_s
    if left_s <= 0:
        return f"{expiry.what} has expired: renew it. Open connections continue, new ones are refused."
    if left_s < 2 * 3_600:
        left = counted(math.ceil(left_s / 60), "minute")
    else:
        left = f"{left_s / 86_400:.0f} days" if left_s >= 2 * 86_400 else f"{left_s / 3_600:.0f} hours"
    return f"{expiry.what} expires in {left}: renew it before; a changed file counts from the next connection on."
