"""The one JSON object that a command with --json prints on stdout, whatever becomes of the command."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import click

_FIELDS: Final = "sidecar.cli.json_output.fields"
_IS_PRINTED: Final = "sidecar.cli.json_output.is_printed"


def answer_with(fields: Callable[[], Mapping[str, Any]]) -> None:
    """The command's object has ``fields()``, also if the command fails from now on."""
    click.get_current_context().meta[_FIELDS] = fields


def print_answer(error: str | None) -> None:
    """Print the object: the command's fields, and ``error``, which is null exactly if the exit status is 0."""
    meta = click.get_current_context().meta
    fields: Callable[[], Mapping[str, Any]] = meta.get(_FIELDS, dict)
    print_object({**fields(), "error": error})


def print_object(content: Mapping[str, Any]) -> None:
    """Print ``content`` as the object of the command."""
    click.get_current_context().meta[_IS_PRINTED] = True
    click.echo(json.dumps(content, indent=1))


def answer_failure(words: Sequence[str], sentence: str) -> None:
    """Print the object of a command that failed, if it was asked for one and has printed none."""
    if "--json" in words and not click.get_current_context().meta.get(_IS_PRINTED):
        print_answer(sentence)
