"""``kafka-sidecar doctor``: check host, installation, configuration and daemon; suggest a remedy."""

from __future__ import annotations

import asyncio
import contextlib
import os
import resource
import shutil
import socket
import sys
from collections.abc import Callable, Iterator
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple

import click

from sidecar.cli.common import run_dir_option
from sidecar.common.config_rules import parse_address
from sidecar.common.model import ExitStatus
from sidecar.common.settings import ConfigError, SidecarConfig
from sidecar.controller.run_dir import RunDir, RunDirError, process_state, read_json

OPEN_FILES_MIN = 4_096
CONNECT_TIMEOUT_S = 3.0
WORKER_TIMEOUT_S = 30.0
SYSTEM_UID_MAX = 999
NEEDED_PACKAGES = (
    "click",
    "cramjam",
    "kio",
    "msgpack",
    "prometheus_client",
    "pydantic",
    "rich",
    "scramp",
    "setproctitle",
    "uvloop",
    "zmq",
)
"""Modules that `kafka-sidecar[daemon]` installs."""


class Finding(NamedTuple):
    """``mark``: ok, warn or FAIL."""

    mark: str
    text: str


Check = Callable[[SidecarConfig, RunDir], Iterator[Finding]]


@click.command()
@run_dir_option
@click.option("-c", "--config", "file", type=click.Path(path_type=Path), help="Configuration file (TOML).")
@click.option("-X", "overrides", multiple=True, metavar="KEY=VALUE", help="Set one value; may be repeated.")
def doctor(run_dir: RunDir, file: Path | None, overrides: tuple[str, ...]) -> None:
    """Check the requirements of the daemon, and suggest a remedy for each that is missing.

    Give it the configuration of `run` and it also tries the brokers. Exit 1 when something fails.

    \b
    kafka-sidecar doctor
    kafka-sidecar doctor -c /etc/kafka-sidecar/sidecar.toml
    kafka-sidecar doctor -X bootstrap.servers=kafka1:9092
    """
    from sidecar.controller.config_loader import load_config

    findings: list[Finding] = []
    try:
        config = load_config(file, overrides, need_servers=False)
    except ConfigError as error:
        findings += [Finding("FAIL", sentence) for sentence in error.sentences]
        config = load_config(None, (), {}, need_servers=False)
    for check in CHECKS:
        findings += check(config, run_dir)
    colours = {"ok": "green", "warn": "yellow", "FAIL": "red"}
    for mark, text in findings:
        click.echo(f"{click.style(f'{mark:4}', fg=colours[mark])}  {text}")
    if any(mark == "FAIL" for mark, _ in findings):
        raise SystemExit(int(ExitStatus.FAILED))


def _installation(config: SidecarConfig, run_dir: RunDir) -> Iterator[Finding]:
    if not sys.platform.startswith("linux"):
        yield Finding("FAIL", f"This is {sys.platform}: the daemon runs on Linux only.")
    if sys.flags.optimize:
        yield Finding("FAIL", "Python runs with -O: start without it, and without PYTHONOPTIMIZE.")
    try:
        import_module("sidecar.kernel._kernel")
        yield Finding("ok", f"Compiled kernel, Python {sys.version.split()[0]}.")
    except ImportError as error:
        yield Finding(
            "FAIL",
            f"The compiled kernel is missing ({error}): install again with a C compiler there "
            "(Debian: apt-get install gcc python3-dev).",
        )
    missing = [name for name in NEEDED_PACKAGES if find_spec(name) is None]
    if missing:
        yield Finding("FAIL", f"Missing packages: {', '.join(missing)}; pip install 'kafka-sidecar[daemon]'.")
    if find_spec("hypothesis") is not None:
        yield Finding("ok", "Development environment (hypothesis is installed; the daemon keeps it out).")


def _worker(config: SidecarConfig, run_dir: RunDir) -> Iterator[Finding]:
    """A worker process is started as the daemon would, and ended once it has imported everything."""
    try:
        from sidecar.controller.standby_worker import StandbyWorker, last_line
    except ImportError:
        return  # said above, with the missing package
    try:
        standby = StandbyWorker()
    except OSError as error:
        yield Finding("FAIL", f"A worker process cannot be made: {error.strerror or error}.")
        return

    async def wait() -> bool:
        async with asyncio.timeout(WORKER_TIMEOUT_S):
            return await standby.wait_warm()

    try:
        if asyncio.run(wait()):
            yield Finding("ok", "A worker process starts.")
        else:
            words = last_line(standby.take_words())
            yield Finding("FAIL", f"A worker process ends while it is loaded: {words}: install again.")
    except TimeoutError:
        yield Finding("FAIL", f"A worker process is not loaded after {WORKER_TIMEOUT_S:g} s.")
    finally:
        standby.end()


def _memory(config: SidecarConfig, run_dir: RunDir) -> Iterator[Finding]:
    path = config.text("pool.path")
    folder = Path(path).parent if path else Path("/dev/shm")
    is_running = False
    with contextlib.suppress(RunDirError):  # said below
        is_running = run_dir.holder() is not None
    if not folder.is_dir():
        yield Finding("FAIL", f"Folder {folder} for the segment does not exist: mount it or set pool.path.")
        return
    free, needed = shutil.disk_usage(folder).free, config.integer("buffer.memory")
    if not is_running and free < needed * 11 // 10:
        yield Finding(
            "FAIL",
            f"{folder} has {free >> 20} MiB free, buffer.memory needs {needed >> 20} MiB and some more: "
            f"lower "
            "buffer.memory, or enlarge it (docker: --shm-size, its default is 64 MiB).",
        )
    else:
        yield Finding("ok", f"{folder} has {free >> 20} MiB free (buffer.memory is {needed >> 20} MiB).")
    if not path and SYSTEM_UID_MAX < os.geteuid() != 65_534:
        yield Finding(
            "warn",
            "This is an ordinary login user: systemd-logind may delete its segment in /dev/shm at logout "
            "(RemoveIPC=yes); run the daemon as a system user, or set pool.path.",
        )


def _limits(config: SidecarConfig, run_dir: RunDir) -> Iterator[Finding]:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = max(OPEN_FILES_MIN, 2 * config.integer("daemon.clients_max"))
    if soft < wanted:
        yield Finding(
            "warn", f"At most {soft} open files (hard limit {hard}): raise it to {wanted} (ulimit -n)."
        )
    else:
        yield Finding("ok", f"{soft} open files allowed.")
    cpus, workers = len(os.sched_getaffinity(0)), config.integer("daemon.workers")
    if workers > cpus:
        yield Finding(
            "warn", f"daemon.workers = {workers} on {cpus} CPUs: more workers than CPUs only cost memory."
        )


def _run_dir(config: SidecarConfig, run_dir: RunDir) -> Iterator[Finding]:
    try:
        run_dir.check_length()
        holder = run_dir.holder()
        if holder is None and run_dir.path.exists():
            run_dir.check_ours()
    except RunDirError as error:
        yield Finding("FAIL", str(error))
        return
    if holder is None:
        parent = next(each for each in (run_dir.path, *run_dir.path.parents) if each.exists())
        if not os.access(parent, os.W_OK):
            yield Finding(
                "FAIL", f"Run dir {run_dir.path}: {parent} is not writable for you; give another --run-dir."
            )
        else:
            yield Finding("ok", f"No daemon runs on run dir {run_dir.path}; it can be used.")
        segment = read_json(run_dir.segment_json)
        if segment and Path(str(segment.get("path"))).exists():
            yield Finding("warn", f"A segment of a daemon before is still there: {segment['path']}.")
        return
    info = read_json(run_dir.daemon_json) or {}
    if process_state(holder) in {"T", "t"}:
        yield Finding("FAIL", f"The daemon (pid {holder}) is stopped: `kill -CONT {holder}` lets it go on.")
    elif info.get("takes_records"):
        yield Finding("ok", f"A daemon runs on run dir {run_dir.path} (pid {holder}) and takes records.")
    else:
        yield Finding(
            "FAIL", f"The daemon on run dir {run_dir.path} takes no records: {info.get('sentence')}"
        )
    if info.get("held_slots"):
        yield Finding("warn", f"Slots {info['held_slots']} hold records of dead workers.")


def _brokers(config: SidecarConfig, run_dir: RunDir) -> Iterator[Finding]:
    if "bootstrap.servers" not in config.sources:
        yield Finding("ok", "Brokers not tried: no bootstrap.servers given (-c or -X).")
        return
    reached = 0
    servers = config.words("bootstrap.servers")
    for server in servers:
        address = parse_address(server)
        assert address is not None, "checked by the loader"
        try:
            socket.create_connection(address, CONNECT_TIMEOUT_S).close()
            reached += 1
            yield Finding("ok", f"Broker {server} accepts connections.")
        except OSError as error:
            mark = "warn" if len(servers) > 1 else "FAIL"
            yield Finding(mark, f"Broker {server} cannot be reached ({error.strerror or error}).")
    if not reached and len(servers) > 1:
        yield Finding("FAIL", "No broker of bootstrap.servers can be reached from this host.")


CHECKS: tuple[Check, ...] = (_installation, _worker, _memory, _limits, _run_dir, _brokers)
