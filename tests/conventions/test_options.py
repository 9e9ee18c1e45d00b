"""Goal: an option of the command line has one spelling, one meaning and a help, whichever command has it."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

from sidecar.cli.bench import bench
from sidecar.cli.main import cli
from sidecar.cli.options import RenamedOption
from sidecar.tools.bench.main import PARTS

SPELLED_OTHERWISE = {
    "--bootstrap": "--bootstrap-servers",
    "--brokers": "--bootstrap-servers",
    "--broker": "--bootstrap-servers",
    "--servers": "--bootstrap-servers",
    "--rundir": "--run-dir",
    "--conf": "--config",
    "--config-file": "--config",
    "--set": "-X",
    "--output": "--json",
    "--wait-timeout": "--timeout",
    "--topics": "--topic",
    "--follow": "--watch",
}
"""The name elsewhere, or the one that a command gave it once; the name here."""


def options() -> Iterator[tuple[str, click.Option]]:
    """Each option with the words of its command."""

    def walk(command: click.Command, words: str) -> Iterator[tuple[str, click.Option]]:
        yield from ((words, each) for each in command.params if isinstance(each, click.Option))
        if isinstance(command, click.Group):
            context = click.Context(command)
            for name in command.list_commands(context):
                found = command.get_command(context, name)
                assert found is not None
                yield from walk(found, f"{words} {name}".strip())

    return walk(cli, "")


OPTIONS = [*options()]


def shown(option: click.Parameter) -> list[str]:
    """The names in its help, and on the pages: no name that it had once."""
    return option.opts[:1] if isinstance(option, RenamedOption) else [*option.opts, *option.secondary_opts]


def test_an_option_has_one_form_in_all_commands() -> None:
    forms: dict[str, dict[object, list[str]]] = defaultdict(lambda: defaultdict(list))
    for command, option in OPTIONS:
        form = (option.is_flag, type(option.type).__name__, option.metavar, tuple(shown(option)))
        for name in shown(option):
            forms[name][form].append(command)
    assert len(forms) > 40, "it has looked at them"
    differing = {name: dict(found) for name, found in forms.items() if len(found) > 1}
    assert not differing


@pytest.mark.parametrize("name", sorted(SPELLED_OTHERWISE))
def test_no_second_spelling_is_shown(name: str) -> None:
    assert [command for command, option in OPTIONS if name in shown(option)] == []


def test_each_option_says_what_it_is_and_numbers_have_bounds() -> None:
    for command, option in OPTIONS:
        where = f"{command} {option.opts[0]}"
        assert option.help and (option.help[0].isupper() or option.help[0] == "["), where
        assert option.help.rstrip("]")[-1] in ".?" or option.help.endswith("]"), where
        unbounded = type(option.type) in {type(click.INT), type(click.FLOAT)}
        assert not unbounded or option.name == "seed", where
        if option.multiple:
            assert option.help.rstrip(".").endswith("ay be repeated"), where


def test_an_old_name_still_works_and_is_not_shown() -> None:
    taken: list[str | None] = []

    @click.command()
    @click.option("--new-name", "--old", "value", cls=RenamedOption, help="A value.")
    def command(value: str | None) -> None:
        taken.append(value)

    command(["--old", "a"], standalone_mode=False)
    command(["--new-name", "b"], standalone_mode=False)
    assert taken == ["a", "b"]
    text = command.get_help(click.Context(command))
    assert "--new-name TEXT" in text and "--old" not in text
    renamed = {shown(option)[0]: option.opts[1:] for _, option in OPTIONS if len(option.opts) > 1}
    assert renamed["--bootstrap-servers"] == ["--bootstrap"] and renamed["--json-file"] == ["--json"]


def test_help_and_page_name_each_part_of_the_bench() -> None:
    shown_parts = re.search(r"Parts:((?:\s+[a-z-]+)+)", bench.help or "")
    assert shown_parts is not None and sorted(shown_parts[1].split()) == sorted(PARTS)
    page = (Path(__file__).parents[2] / "docs" / "benchmarks.md").read_text()
    described = re.findall(r"^\*\*(`[a-z-]+`(?:, `[a-z-]+`)*)\*\*:", page, re.MULTILINE)
    assert sorted(re.findall(r"[a-z-]+", " ".join(described))) == sorted(PARTS)
