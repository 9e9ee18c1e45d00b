"""``kafka-sidecar config check|show``: checks a configuration, or shows the effective values."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import click

from sidecar.cli.common import fail, say
from sidecar.cli.json_output import answer_with, print_answer, print_object
from sidecar.cli.options import config_file_option, json_option, settings_option
from sidecar.common.model import ExitStatus
from sidecar.common.wording import counted
from sidecar.config.client_settings import CLIENT_KEYS
from sidecar.config.secret_sources import HIDDEN
from sidecar.config.settings import BY_NAME, SETTINGS, ConfigError, SidecarConfig

_TABLES = ("kafka", "daemon", "pool", "http", "recover", "dead_letters", "log")


@click.group()
@click.option(
    "--run-dir", type=click.Path(path_type=Path), hidden=True, help="Accepted for uniformity; not used."
)
def config(run_dir: Path | None) -> None:
    """Check or show a configuration, without any daemon."""


@config.command()
@config_file_option
@settings_option
@json_option
def check(file: Path | None, overrides: tuple[str, ...], as_json: bool) -> None:
    """Say whether `run` would take this configuration.

    Each fault is one sentence. Exit 2 with a fault. With --json they are the list "faults".

    \b
    kafka-sidecar config check -c sidecar.toml
    kafka-sidecar config check -c sidecar.toml -X acks=1
    """
    report: dict[str, Any] = {"values_set": 0, "warnings": [], "faults": []}
    if as_json:
        answer_with(lambda: report)
    concluded = _load(file, overrides, need_servers=True, faults=report["faults"])
    for sentence in concluded.warnings:
        say(f"Warning: {sentence}")
    values = counted(len(concluded.sources), "value")
    if as_json:
        report |= {"values_set": len(concluded.sources), "warnings": list(concluded.warnings)}
        print_answer(None)
        return
    click.echo(f"The configuration is good: {values} set, the rest are defaults.")


@config.command()
@config_file_option
@settings_option
@click.option("--json", "as_json", is_flag=True, help="For programs: one JSON object of all values.")
@click.option("--reference", is_flag=True, help="The reference of all settings, as Markdown.")
def show(file: Path | None, overrides: tuple[str, ...], as_json: bool, reference: bool) -> None:
    """Print every value as `run` would use it, and its source.

    The output is TOML that can be edited and used.

    \b
    kafka-sidecar config show > sidecar.toml
    kafka-sidecar config show -c sidecar.toml --json
    """
    if reference:
        from sidecar.cli.config_reference import reference_markdown

        click.echo(reference_markdown(), nl=False)
        return
    concluded = _load(file, overrides, need_servers=False)
    if as_json:
        shown = {name: _shown(name, value) for name, value in concluded.to_mapping().items()}
        shown["clients"] = {name: _without_secrets(keys) for name, keys in concluded.clients.items()}
        print_object(shown)
    else:
        click.echo(to_toml(concluded), nl=False)


def _load(
    file: Path | None, overrides: tuple[str, ...], *, need_servers: bool, faults: list[str] | None = None
) -> SidecarConfig:
    """The configuration. Ends with 2 for a wrong one; ``faults`` gets a sentence for each fault."""
    from sidecar.config.loader import load_config

    try:
        return load_config(file, overrides, need_servers=need_servers)
    except ConfigError as error:
        if faults is not None:
            faults += error.sentences
        fail(str(error), ExitStatus.USAGE)


def _shown(name: str, value: object) -> object:
    row = BY_NAME.get(name)
    return HIDDEN if row is not None and row.secret and value is not None else value


def _without_secrets(keys: Any) -> dict[str, Any]:
    """The keys of one [clients.NAME], with secret values hidden."""
    return {key: HIDDEN if CLIENT_KEYS[key].secret else value for key, value in keys.items()}


def to_toml(concluded: SidecarConfig) -> str:
    """The configuration as TOML: every value, commented out if it is unset; secrets are hidden."""
    lines: list[str] = []
    for table in _TABLES:
        lines += [f"[{table}]"]
        for row in SETTINGS:
            if row.table != table:
                continue
            value = _shown(row.name, concluded.values[row.name])
            key = f'"{row.key}"' if "." in row.key else row.key
            source = concluded.sources.get(row.name)
            comment = f"  # from {source}" if source else ""
            lines.append(f"# {key} =  (unset)" if value is None else f"{key} = {_toml(value)}{comment}")
        lines.append("")
    for name, keys in concluded.clients.items():
        lines.append(f"[clients.{json.dumps(name)}]")
        lines += [
            f"{json.dumps(key) if '.' in key else key} = {_toml(value)}"
            for key, value in _without_secrets(keys).items()
        ]
        lines.append("")
    for pattern, keys in concluded.topics.items():
        lines.append(f"[topics.{json.dumps(pattern)}]")
        lines += [f"{json.dumps(key) if '.' in key else key} = {_toml(value)}" for key, value in keys.items()]
        lines.append("")
    return "\n".join(lines)


def _toml(value: object) -> str:
    # JSON's strings, numbers, booleans and arrays are valid TOML, too.
    return json.dumps(value)
