"""The root of the command line. Commands are imported only when used, so that each starts quickly."""

from __future__ import annotations

import errno
import os
from importlib import import_module
from pathlib import Path
from typing import Any, Final

import click

from sidecar.common.model import ExitStatus

COMMANDS = {
    "run": "sidecar.cli.run:run",
    "reload": "sidecar.cli.reload:reload",
    "pause": "sidecar.cli.orders:pause",
    "resume": "sidecar.cli.orders:resume",
    "drain": "sidecar.cli.orders:drain",
    "status": "sidecar.cli.status:status",
    "top": "sidecar.cli.top:top",
    "explain": "sidecar.cli.explain:explain",
    "produce": "sidecar.cli.produce:produce",
    "pipeline": "sidecar.cli.pipeline:pipeline",
    "topics": "sidecar.cli.topics:topics",
    "config": "sidecar.cli.config:config",
    "txn": "sidecar.cli.txn:txn",
    "replay": "sidecar.cli.replay:replay",
    "recover": "sidecar.cli.recover:recover",
    "keygen": "sidecar.cli.keygen:keygen",
    "doctor": "sidecar.cli.doctor:doctor",
    "demo": "sidecar.cli.demo:demo",
    "bench": "sidecar.cli.bench:bench",
    "chaos": "sidecar.cli.chaos:chaos",
}
"""Name → module:attribute."""

_FULL: Final = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO})


class LazyGroup(click.Group):
    """A group that imports a command's module only when that command is asked for."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        target = COMMANDS.get(cmd_name)
        if target is None:
            return None
        module, attribute = target.split(":")
        command = getattr(import_module(module), attribute)
        assert isinstance(command, click.Command)
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """As click's method, but suggests the command that is meant by an unknown one."""
        if args and args[0] not in COMMANDS:
            from sidecar.cli.usage_hints import command_hint

            hint = command_hint(args[0], COMMANDS)
            if hint is not None:
                ctx.fail(f"No such command {args[0]!r}: {hint}")
        return super().resolve_command(ctx, args)

    def invoke(self, ctx: click.Context) -> Any:
        """As click's method, but Ctrl-C ends every command with the status that shells use, a setting given as an
        option gets a hint, and a command with --json has its one object also if it fails.
        """
        from sidecar.cli.common import Failed, say
        from sidecar.cli.json_output import answer_failure

        words = tuple(ctx.args)
        try:
            return super().invoke(ctx)
        except click.UsageError as error:
            if isinstance(error, click.NoSuchOption):
                from sidecar.cli.usage_hints import option_hint

                hint = option_hint(error, words)
                error = error if hint is None else click.UsageError(hint, error.ctx)
            answer_failure(words, error.format_message())
            raise error from None
        except Failed as failed:
            answer_failure(words, failed.sentence)
            raise
        except KeyboardInterrupt:
            say("Stopped.")
            answer_failure(words, "Stopped.")
            raise SystemExit(int(ExitStatus.INTERRUPTED)) from None

    def main(self, *args: Any, **kwargs: Any) -> Any:
        """As click's method, but an error of stdout is one sentence and no traceback."""
        try:
            return super().main(*args, **kwargs)
        except OSError as error:
            if error.filename is not None or error.errno not in _FULL:
                raise
            from sidecar.cli.common import say

            os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # what is still buffered goes there at exit
            say(f"The output could not be written: {error.strerror}.")
            raise SystemExit(int(ExitStatus.FAILED)) from None

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """As click's method, with the whole first sentence of each command."""
        rows = []
        for name in self.list_commands(ctx):
            command = self.get_command(ctx, name)
            if command is not None:
                rows.append((name, command.get_short_help_str(limit=1_000)))
        with formatter.section("Commands"):
            formatter.write_dl(rows)


@click.group(
    cls=LazyGroup, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100}
)
@click.option(
    "--run-dir", type=click.Path(path_type=Path, readable=False), default=None, help="Run dir of the daemon."
)
@click.version_option(package_name="kafka-sidecar", prog_name="kafka-sidecar")
@click.pass_context
def cli(ctx: click.Context, run_dir: Path | None) -> None:
    """A Kafka producer for every process on this host.

    \b
    kafka-sidecar run -X bootstrap.servers=localhost:9092   start a daemon here
    kafka-sidecar status                                    does it take records?
    echo hello | kafka-sidecar produce greetings            send it a record

    Exit status: 0 ok, 1 failed, 2 wrong usage, 69 no daemon reachable, 75 timed out, 130 Ctrl-C.
    """
    ctx.obj = run_dir
