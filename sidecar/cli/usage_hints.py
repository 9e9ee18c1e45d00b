"""Hints after a wrong command or option: the word of another tool, a misspelt one, a setting given as an option."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from difflib import get_close_matches
from typing import Final

import click

_STOP: Final = "SIGTERM or Ctrl-C ends `kafka-sidecar run`, and `kafka-sidecar drain` prepares that"
_RESTART: Final = "`kafka-sidecar run --takeover` replaces a running daemon, and `reload` takes new settings"
COMMANDS_ELSEWHERE: Final = {
    **dict.fromkeys(("start", "serve", "server", "daemon", "up", "agent"), "did you mean run?"),
    **dict.fromkeys(("stop", "down", "shutdown", "kill", "quit"), f"{_STOP}."),
    **dict.fromkeys(("restart", "upgrade"), f"{_RESTART}."),
    **dict.fromkeys(("send", "publish", "producer", "cat", "tail"), "did you mean produce?"),
    **dict.fromkeys(("list", "ls", "describe"), "did you mean topics?"),
    **dict.fromkeys(("health", "healthcheck", "info", "ps", "ping"), "did you mean status?"),
    **dict.fromkeys(("monitor", "watch"), "did you mean top?"),
    **dict.fromkeys(("why", "lag"), "did you mean explain?"),
    **dict.fromkeys(("validate", "lint"), "did you mean config check?"),
    **dict.fromkeys(("diagnose", "test"), "did you mean doctor?"),
    "version": "did you mean --version?",
    "help": "did you mean --help?",
}
"""A command of other tools → the hint."""


def command_hint(name: str, known: Iterable[str]) -> str | None:
    """The hint for a command that is not ``known``."""
    if name in COMMANDS_ELSEWHERE:
        return COMMANDS_ELSEWHERE[name]
    near = get_close_matches(name, known, 1)
    return f"did you mean {near[0]}?" if near else None


def option_hint(error: click.NoSuchOption, words: Sequence[str]) -> str | None:
    """The text of an error for an option that is a setting's name, such as ``--linger.ms=5``; ``words`` are those of
    the command line.
    """
    setting = _setting(error.option_name.lstrip("-"))
    if setting is None:
        return None
    given = "VALUE"
    for index, word in enumerate(words):
        option, is_joined, value = word.partition("=")
        if option == error.option_name:
            following = words[index + 1] if index + 1 < len(words) else "-"
            given = value if is_joined else given if following.startswith("-") else following
    takes_settings = error.ctx is not None and any(
        each.name == "overrides" for each in error.ctx.command.params
    )
    how = f"-X {setting}={given}" if takes_settings else f"`kafka-sidecar run -X {setting}={given}`"
    return f"No such option '{error.option_name}': {setting} is a setting, given as {how}."


def _setting(option: str) -> str | None:
    """The setting that an option's name means."""
    from sidecar.config.hints import OTHER_NAMES
    from sidecar.config.settings import BY_NAME

    name = option.replace("-", ".").replace("_", ".")
    name = OTHER_NAMES.get(name, name)
    for known in BY_NAME:
        if known.replace("_", ".") == name or known.replace("_", ".").endswith(f".{name}"):
            return known
    return None
