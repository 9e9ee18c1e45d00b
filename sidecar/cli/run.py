"""``kafka-sidecar run``: runs the daemon in the foreground."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import click

from sidecar.cli.common import fail
from sidecar.cli.options import config_file_option, settings_option
from sidecar.common.log_lines import log_to_stderr
from sidecar.common.model import ExitStatus
from sidecar.config.settings import ConfigError


@click.command()
@config_file_option
@settings_option
@click.option("--run-dir", type=click.Path(path_type=Path), default=None, help="Folder of sockets and lock.")
@click.option(
    "--takeover",
    is_flag=True,
    help="Replace the daemon on this run dir, if one runs; clients keep sending.",
)
@click.option("-v", "--verbose", is_flag=True, help="Log details too.")
@click.pass_context
def run(
    ctx: click.Context,
    file: Path | None,
    overrides: tuple[str, ...],
    run_dir: Path | None,
    takeover: bool,
    verbose: bool,
) -> None:
    """Run the daemon in the foreground; it logs to stderr and ends on SIGTERM or Ctrl-C.

    On the first signal it accepts no new records and delivers the rest (daemon.shutdown_timeout_s). A second one, at
    least two seconds later, fails the rest to their senders. With --takeover it prepares everything, then stops the
    daemon that holds the run dir and continues its work; clients keep sending through such an upgrade.

    \b
    kafka-sidecar run -X bootstrap.servers=localhost:9092
    kafka-sidecar run -c /etc/kafka-sidecar/sidecar.toml
    kafka-sidecar run -c sidecar.toml -X linger.ms=20 -X daemon.workers=4
    """
    from sidecar.config.loader import load_config
    from sidecar.controller.main import run as run_daemon

    words = (*overrides, "log.level=debug") if verbose else overrides
    read = partial(load_config, file, words)
    try:
        config = read()
    except ConfigError as error:
        fail(str(error), ExitStatus.USAGE)
    log_to_stderr(config.text("log.level"), config.text("log.format"), "controller")
    root = ctx.find_root().obj
    chosen = run_dir or (root if isinstance(root, Path) else None)
    raise SystemExit(run_daemon(config, chosen, read=read, takeover=takeover))
