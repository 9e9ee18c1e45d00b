"""``kafka-sidecar pipeline``: the command line of client_stub/pipeline, which spark-submit takes without the daemon."""

from __future__ import annotations

from pathlib import Path

import click


@click.command(
    context_settings={"ignore_unknown_options": True, "help_option_names": []},
    add_help_option=False,
)
@click.argument("words", nargs=-1, type=click.UNPROCESSED, metavar="run|check|new FILE.toml")
@click.pass_context
def pipeline(ctx: click.Context, words: tuple[str, ...]) -> None:
    """Run a pipeline: Spark reads, SQL selects, the sidecar sends, and a report counts.

    Exit 0 only when all sums agree.

    \b
    kafka-sidecar pipeline new late.toml
    kafka-sidecar pipeline check late.toml
    kafka-sidecar pipeline run late.toml --set minutes=30
    kafka-sidecar pipeline run --help
    """
    from client_stub.pipeline.main import main

    root = ctx.find_root().obj
    run_dir = str(root) if isinstance(root, Path) else None
    raise SystemExit(main(words, name=ctx.command_path, run_dir=run_dir))
