"""Options of several commands: one spelling, one meaning and one help text for each."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, TypeVar

import click

Command = TypeVar("Command", bound=Callable[..., Any])

LONGEST_TIMEOUT_S: Final = 86_400.0


class NumberRange(click.FloatRange):
    """A range of numbers that refuses nan, which compares with nothing."""

    name = "number"  # in help and errors, instead of "float range"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        number = super().convert(value, param, ctx)
        if math.isnan(number):
            self.fail(f"{value} is not in the range {self._describe_range()}.", param, ctx)
        return number


class RenamedOption(click.Option):
    """An option that also accepts its former names, given after the first. Help shows only the first name."""

    def get_help_record(self, ctx: click.Context) -> tuple[str, str] | None:
        names = self.opts
        self.opts = names[:1]
        try:
            return super().get_help_record(ctx)
        finally:
            self.opts = names


def config_file_option(command: Command) -> Command:
    """``-c FILE``, passed as ``file``."""
    return click.option(
        "-c",
        "--config",
        "file",
        type=click.Path(path_type=Path),
        help="Configuration file: TOML, or *.properties.",
    )(command)


def settings_option(command: Command) -> Command:
    """``-X KEY=VALUE``, passed as ``overrides``."""
    return click.option(
        "-X", "overrides", multiple=True, metavar="KEY=VALUE", help="Set one value; may be repeated."
    )(command)


def json_option(command: Command) -> Command:
    """``--json``, passed as ``as_json``."""
    return click.option("--json", "as_json", is_flag=True, help="For programs: one JSON object.")(command)


def timeout_option(default_s: float, what: str, least_s: float = 0.0) -> Callable[[Command], Command]:
    """``--timeout SECONDS``, passed as ``timeout_s``; ``what`` continues the help "Seconds to wait"."""
    return click.option(
        "--timeout",
        "timeout_s",
        default=default_s,
        show_default=True,
        type=NumberRange(least_s, LONGEST_TIMEOUT_S),
        help=f"Seconds to wait {what}.",
    )


def bootstrap_servers_option(*old_names: str) -> Callable[[Command], Command]:
    """``--bootstrap-servers`` of a tool that starts its own Kafka without this option."""
    return click.option(
        "--bootstrap-servers",
        *old_names,
        "bootstrap_servers",
        cls=RenamedOption,
        metavar="HOST:PORT,...",
        help="Use this running cluster instead of an embedded one.",
    )
