"""The rows of [log] in the settings table."""

from __future__ import annotations

from typing import Final

from sidecar.config.setting import Setting, choice

LOG_SETTINGS: Final[tuple[Setting, ...]] = (
    choice(
        "log.level",
        "info",
        ("debug", "info", "warning", "error"),
        "The least severe lines that the daemon and its workers log. `run -v` is debug.",
    ),
    choice(
        "log.format",
        "text",
        ("text", "json", "journald"),
        "Lines of the log on stderr. json: an object in each. journald: each begins with its priority, as in <4>, and "
        "the journal adds the time; the systemd unit sets it.",
    ),
)
