"""``kafka-sidecar doctor``: checks host, installation, configuration and daemon, and suggests remedies."""

from __future__ import annotations

import asyncio
import contextlib
import os
import resource
import shutil
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path

import click

from sidecar.cli.common import run_dir_option, running_configuration
from sidecar.cli.json_output import answer_with, print_answer
from sidecar.cli.options import config_file_option, json_option, settings_option
from sidecar.common.model import ExitStatus
from sidecar.common.processes import process_state
from sidecar.common.wording import counted
from sidecar.config.needed_packages import NEEDED_PACKAGES
from sidecar.config.settings import ConfigError, SidecarConfig
from sidecar.controller.rundir.published import read_json
from sidecar.controller.rundir.run_dir import RunDir, RunDirError
from sidecar.doctor.clock import clock_findings
from sidecar.doctor.findings import Finding
from sidecar.doctor.memory import memory_findings
from sidecar.shm.disk import memory_file_system

COLOURS = {"ok": "green", "warn": "yellow", "FAIL": "red", "skip": "bright_black"}
OPEN_FILES_MIN = 4_096
WORKER_TIMEOUT_S = 30.0
SYSTEM_UID_MAX = 999
Check = Callable[[SidecarConfig, RunDir], Iterator[Finding]]


@click.command()
@run_dir_option
@config_file_option
@settings_option
@click.option(
    "--topic", "topics", multiple=True, metavar="NAME", help="May it be written to? May be repeated."
)
@json_option
def doctor(
    run_dir: RunDir,
    file: Path | None,
    overrides: tuple[str, ...],
    topics: tuple[str, ...],
    as_json: bool,
) -> None:
    """Check the requirements of the daemon and the way to Kafka, and suggest a remedy for what is missing.

    It takes the configuration of `run`, or that of a running daemon. Brokers are tried step by step: name, connection,
    TLS, login, rights; the first step that fails says why, and later ones are skipped. Exit 1 when something fails.

    \b
    kafka-sidecar doctor
    kafka-sidecar doctor -c /etc/kafka-sidecar/sidecar.toml --topic orders
    kafka-sidecar doctor -X bootstrap.servers=kafka1:9092
    kafka-sidecar doctor --json | jq '.findings[] | select(.result == "fail")'
    """
    findings: list[Finding] = []
    if as_json:
        answer_with(lambda: {"findings": [{"result": mark.lower(), "text": text} for mark, text in findings]})

    def show(found: Iterable[Finding]) -> None:
        for mark, text in found:
            if not as_json:
                click.echo(f"{click.style(f'{mark:4}', fg=COLOURS[mark])}  {text}")
            findings.append(Finding(mark, text))

    config, is_sound = _configuration(run_dir, file, overrides, show)
    # On another system the first check says so, and the others ask for what Linux alone has.
    for check in CHECKS if sys.platform.startswith("linux") else CHECKS[:1]:
        show(check(config, run_dir))
    if is_sound:
        show(_kafka(config, topics))
    else:
        show([Finding("skip", "Brokers were not tried: the configuration comes first.")])
    failed = sum(mark == "FAIL" for mark, _ in findings)
    if as_json:
        print_answer(f"{counted(failed, 'check')} failed." if failed else None)
    if failed:
        raise SystemExit(int(ExitStatus.FAILED))


def _configuration(
    run_dir: RunDir,
    file: Path | None,
    overrides: tuple[str, ...],
    show: Callable[[Iterable[Finding]], None],
) -> tuple[SidecarConfig, bool]:
    """The configuration to check, and whether it has no error; with an error it is that of the defaults."""
    from sidecar.config.loader import load_config

    if file is None and "bootstrap.servers" not in "".join(overrides):
        file, overrides = running_configuration(run_dir, overrides)
        if file is not None:
            show([Finding("ok", f"The running daemon has its configuration from {file}.")])
        elif overrides:
            text = "The running daemon has no configuration file; its -X and variables are not seen."
            show([Finding("warn", text)])
    try:
        config = load_config(file, overrides, need_servers=False)
    except ConfigError as error:
        show(Finding("FAIL", sentence) for sentence in error.sentences)
        return load_config(None, (), {}, need_servers=False), False
    show(Finding("warn", text) for text in config.warnings)
    return config, True


def _installation(config: SidecarConfig, run_dir: RunDir) -> Iterator[Finding]:
    if not sys.platform.startswith("linux"):
        yield Finding("FAIL", f"This is {sys.platform}: the daemon runs on Linux only.")
    if sys.flags.optimize:
        yield Finding("FAIL", "Python runs with -O: start without it, and without PYTHONOPTIMIZE.")
    try:
        import_module("sidecar.kernel")
        yield Finding("ok", f"Compiled kernel, Python {sys.version.split()[0]}.")
    except ImportError as error:
        yield Finding("FAIL", f"{error} On Debian: apt-get install gcc python3-dev.")
    missing = [name for name in NEEDED_PACKAGES if find_spec(name) is None]
    if missing:
        yield Finding("FAIL", f"Missing packages: {', '.join(missing)}; pip install 'kafka-sidecar[daemon]'.")
    if find_spec("hypothesis") is not None:
        yield Finding("ok", "Development environment (hypothesis is installed; the daemon keeps it out).")


def _worker(config: SidecarConfig, run_dir: RunDir) -> Iterator[Finding]:
    """Start a worker process as the daemon would, and end it once it has imported everything."""
    try:
        from sidecar.controller.workers.standby_worker import StandbyWorker, last_line
    except ImportError:
        return  # reported above, with the missing package
    try:
        standby = StandbyWorker.spawn()
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
    pool = (read_json(run_dir.files.daemon_json) or {}).get("pool") if is_running else None
    if pool:
        size = pool["pages"] * pool["page_bytes"]
        yield Finding(
            "ok",
            f"{folder} has {free >> 20:,} MiB free; the pool of the running daemon is {size >> 20:,} MiB.",
        )
    elif not is_running and free < needed * 11 // 10:
        yield Finding(
            "FAIL",
            f"{folder} has {free >> 20:,} MiB free, buffer.memory needs {needed >> 20:,} MiB and some more: lower "
            "buffer.memory, or enlarge it (docker: --shm-size, its default is 64 MiB).",
        )
    else:
        yield Finding("ok", f"{folder} has {free >> 20:,} MiB free (buffer.memory is {needed >> 20:,} MiB).")
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
        segment = read_json(run_dir.files.segment_json)
        if segment and Path(str(segment.get("path"))).exists():
            yield Finding(
                "warn",
                f"The segment of an earlier daemon is still there, and the next one takes it over: {segment['path']}.",
            )
        return
    info = read_json(run_dir.files.daemon_json) or {}
    if process_state(holder) in {"T", "t"}:
        yield Finding(
            "FAIL", f"The daemon (pid {holder}) is stopped: `kill -CONT {holder}` lets it continue."
        )
    elif info.get("takes_records"):
        yield Finding("ok", f"A daemon runs on run dir {run_dir.path} (pid {holder}) and takes records.")
    else:
        yield Finding(
            "FAIL", f"The daemon on run dir {run_dir.path} takes no records: {info.get('sentence')}"
        )
    if info.get("held_slots"):
        yield Finding("warn", f"Slots {info['held_slots']} hold records of dead workers.")


def _over_tcp(config: SidecarConfig, run_dir: RunDir) -> Iterator[Finding]:
    """Check daemon.listen: the key by which clients know the daemon, and whether the ports can be opened."""
    listen, key_file = config.text("daemon.listen"), config.text("daemon.curve_key_file")
    if not listen:
        return
    from sidecar.net.stubs.curve_gate import public_keys_of
    from sidecar.net.stubs.tcp_listen import listen_on

    workers = config.integer("daemon.workers")
    is_running = False
    with contextlib.suppress(RunDirError):
        is_running = run_dir.holder() is not None
    for offset in () if is_running else range(1 + workers):
        try:
            listen_on(listen, offset).close()
        except OSError as error:
            whose = "clients" if not offset else f"worker {offset - 1}"
            yield Finding(
                "FAIL",
                f"The port of daemon.listen = {listen} for {whose} cannot be opened ({error.strerror or error}): "
                "choose another host or port.",
            )
            return
    keys = " or ".join(public_keys_of(key_file))
    yield Finding(
        "ok",
        f"Clients over TCP: {listen} and the {workers} ports after it; the daemon's public key is {keys}.",
    )


def _clock(config: SidecarConfig, run_dir: RunDir) -> Iterator[Finding]:
    yield from clock_findings()


def _cgroup(config: SidecarConfig, run_dir: RunDir) -> Iterator[Finding]:
    holder = None
    with contextlib.suppress(RunDirError):  # said below
        holder = run_dir.holder()
    path = config.text("pool.path")
    yield from memory_findings(
        holder,
        config.integer("buffer.memory"),
        config.integer("daemon.workers"),
        pool_is_memory=not path or bool(memory_file_system(Path(path))),
    )


CHECKS: tuple[Check, ...] = (_installation, _worker, _memory, _cgroup, _limits, _clock, _run_dir, _over_tcp)


def _kafka(config: SidecarConfig, topics: Sequence[str]) -> Iterator[Finding]:
    """The steps to Kafka, each shown as it is done."""
    if "bootstrap.servers" not in config.sources:
        yield Finding(
            "FAIL" if topics else "skip",
            "Brokers were not tried: no daemon runs, and no bootstrap.servers is given (-c or -X).",
        )
        return
    try:
        from sidecar.doctor.kafka import kafka_findings
    except ImportError:
        return  # said above, with the missing package
    steps = kafka_findings(config, topics)

    async def next_step() -> Finding | None:
        return await anext(steps, None)

    with asyncio.Runner() as runner:
        while (finding := runner.run(next_step())) is not None:
            yield finding
