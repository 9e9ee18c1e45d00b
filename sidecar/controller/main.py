"""Start of the controller process: checks, run dir, segment, HTTP port, loop, signals; then the Daemon."""

from __future__ import annotations

import asyncio
import faulthandler
import gc
import logging
import os
import secrets
import signal
import sys
from pathlib import Path

from sidecar.common.config_rules import parse_address
from sidecar.common.model import ExitStatus
from sidecar.common.settings import SidecarConfig
from sidecar.controller.run_dir import RunDir, RunDirError, default_run_dir
from sidecar.controller.slot_holders import end_slot_holders

log = logging.getLogger(__name__)

INSTANCE_ID_BYTES = 16


def run(config: SidecarConfig, run_dir: Path | None) -> int:
    """Run the daemon in the foreground until SIGTERM or SIGINT. Returns the exit status; logs to stderr.

    Everything that can be refused is refused before the first worker starts, in one sentence each.
    """
    if sys.flags.optimize:
        return _refuse(
            "python -O strips the checks that protect the records: start without -O and PYTHONOPTIMIZE."
        )
    if not sys.platform.startswith("linux"):
        return _refuse("kafka-sidecar runs on Linux only (it needs pidfd, eventfd and /dev/shm).")
    for sentence in config.warnings:
        log.warning("%s", sentence)
    try:
        return _run(config, RunDir(run_dir or Path(config.text("daemon.run_dir") or default_run_dir())))
    except RunDirError as error:
        return _refuse(str(error))


def _refuse(sentence: str) -> int:
    print(sentence, file=sys.stderr)
    return ExitStatus.FAILED


def _run(config: SidecarConfig, run_dir: RunDir) -> int:
    try:
        from sidecar.controller.segment_store import SegmentStore
    except ImportError as error:
        # Most of all the compiled kernel, which says itself how to get it; or a package of [daemon].
        return _refuse(f"The daemon is not completely installed. {error}")
    from sidecar.telemetry.exporter import Exporter

    _check_cpus(config)
    run_dir.acquire()
    forget_segment = False  # a refused one stays findable
    try:
        listen = config.text("http.listen")
        address = parse_address(listen) if listen else None
        # The port first: it is the cheapest thing to be refused.
        try:
            exporter = Exporter.bind(*address) if address else None
        except OSError as error:
            raise RunDirError(
                f"http.listen = {listen} cannot be used ({error.strerror or error}): "
                "choose another address, or port 0 for any free one."
            ) from None
        _check_dead_letters(config.text("dead_letters.path"))
        for done in run_dir.clear_leftovers():
            log.warning("Cleaned up: %s.", done)
        for done in end_slot_holders(run_dir.workers_lock):
            log.warning("Cleaned up: %s.", done)
        instance = secrets.token_bytes(INSTANCE_ID_BYTES)
        store = SegmentStore.open(
            run_dir,
            configured_path=config.text("pool.path"),
            page_bytes=config.integer("pool.page_bytes"),
            buffer_memory_bytes=config.integer("buffer.memory"),
            clients_max=config.integer("daemon.clients_max"),
            instance_id=instance,
            sync=config.text("pool.sync"),
            workers=config.integer("daemon.workers"),
        )
        if exporter is not None:
            exporter.attach(store.segment)
        status: int = ExitStatus.FAILED
        try:
            status = _serve(config, run_dir, store, instance, exporter)
        finally:
            left = store.close()
            forget_segment = not left
            if left:
                log.error("The segment %s is kept: it holds %s.", store.path, left)
                status = ExitStatus.FAILED
        return status
    finally:
        run_dir.release(forget_segment=forget_segment)


def _check_cpus(config: SidecarConfig) -> None:
    cpus = config.values["daemon.cpus"]
    usable = os.sched_getaffinity(0)
    wrong = [int(cpu) for cpu in cpus if int(cpu) not in usable] if isinstance(cpus, list) else []
    if wrong:
        raise RunDirError(
            f"daemon.cpus names CPU {', '.join(map(str, wrong))}, and this process may use only "
            f"{', '.join(map(str, sorted(usable)))}: change it or leave it out."
        )


def _check_dead_letters(path: str) -> None:
    """A folder that was named must be usable now, not at the first failure. The usual one is made when needed."""
    if not path:
        return
    folder = Path(path).absolute()
    try:
        folder.mkdir(mode=0o750, parents=True, exist_ok=True)
    except OSError as error:
        raise RunDirError(
            f"dead_letters.path = {path} cannot be used ({error.strerror or error}): choose another folder."
        ) from None
    if not os.access(folder, os.W_OK | os.X_OK):
        raise RunDirError(
            f"dead_letters.path = {path} cannot be written by this user: change its rights, or choose another folder."
        )


def _serve(config: SidecarConfig, run_dir: RunDir, store: object, instance: bytes, exporter: object) -> int:
    import uvloop

    from sidecar.protocol.kio_guard import hide_hypothesis

    hide_hypothesis()
    from sidecar.controller.daemon import Daemon
    from sidecar.controller.segment_store import SegmentStore
    from sidecar.telemetry.exporter import Exporter

    assert isinstance(store, SegmentStore)
    assert exporter is None or isinstance(exporter, Exporter)
    _set_title()
    faulthandler.enable()

    async def serve() -> int:
        daemon = Daemon(config, run_dir, store, instance)
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, daemon.ask_stop, number.name)
        gc.freeze()
        return await daemon.run(exporter)

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(serve())


def _set_title() -> None:
    try:
        import setproctitle
    except ImportError:
        return
    setproctitle.setproctitle("kafka-sidecar: controller")
