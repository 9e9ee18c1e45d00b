"""Starts a daemon on this host for those who have none: one for each configuration, shared by all processes of a user.

Any number of tasks may ask at once. They take turns by a lock on a file, and the first one starts the daemon. It is a
session of its own, no child of the process that started it, and holds no descriptor of it, so whatever ends that
process leaves it alone. It ends by itself when it has had no client for a while (``daemon.idle_timeout_s``).

    HOME                              mode 0700, of this user: nobody else sees a name or a secret in it
        NAME                          of the configuration: the same settings and version, the same daemon
            lock                      flock: held while a daemon is looked for and started
            daemon.properties         its configuration, mode 0600
            daemon.log                its log, begun anew at each start
            failed                    the last start that failed; nobody tries again for FAILED_S
            run                       its run directory
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import os
import socket
import stat
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path
from typing import Final

from client_stub.contract.run_dir import CONTROL_SOCKET, LOCK_FILE
from client_stub.spark.detached_process import DetachedProcess
from client_stub.system.log import log

HOME_VARIABLE: Final = "KAFKA_SIDECAR_AUTOSTART_DIR"
IDLE_TIMEOUT_S: Final = 60
START_S: Final = 60.0
"""How long a daemon may take until it takes clients. It does not wait for Kafka."""
FAILED_S: Final = 60.0
"""How long the failure of a start is the answer to all who ask for the same daemon."""
POLL_S: Final = 0.02
LOG_QUOTED_MAX_BYTES: Final = 400
LAST_LINES: Final = 20
"""Of the log of a daemon that did not start, for the executor's log."""
LAST_LINES_MAX_BYTES: Final = 65_536
POOL_BYTES: Final = 128 << 20
"""The default of buffer.memory."""
POOL_SPARE_BYTES: Final = 32 << 20
"""What the daemon's tables take beside the pool, and some room for others."""
DEFAULTS: Final[Mapping[str, str]] = {
    "daemon.idle_timeout_s": str(IDLE_TIMEOUT_S),
    # A port that nobody asked for is a port too many; a file or a host's agent can ask for one.
    "http.listen": "",
}


class DaemonNotStarted(RuntimeError):
    """Why there is no daemon: one sentence. ``last_lines``: of its log, for the one that has tried to start it."""

    def __init__(self, sentence: str, last_lines: Sequence[str] = ()) -> None:
        super().__init__(sentence)
        self.last_lines = last_lines


def ensure_daemon(settings: Mapping[str, str], home: Path | None = None) -> str:
    """The run directory of a running daemon with these settings (Kafka's names, and ``daemon.workers`` and the like).

    Starts it when there is none. Waits at most START_S for it. Raises DaemonNotStarted. Any thread or process.
    """
    if find_spec("sidecar") is None:
        raise DaemonNotStarted(
            f"The Python of this worker ({sys.executable}) has no daemon to start: install 'kafka-sidecar[daemon]' in "
            "its environment."
        )
    wanted = {**DEFAULTS, **settings}
    place = _own_folder(_own_folder(home if home is not None else _usual_home()) / _name_of(wanted))
    try:
        return _ensure_in(place, wanted)
    except OSError as error:
        raise DaemonNotStarted(_unusable(error.filename or place, error)) from None


def _ensure_in(place: Path, wanted: Mapping[str, str]) -> str:
    """Raises DaemonNotStarted, and OSError for a disk that is full and the like."""
    run_dir = place / "run"
    if not _takes_clients(run_dir):
        with _locked(place / "lock") as lock:
            if not _is_there(run_dir):
                _start(place, run_dir, wanted, lock)
    return str(run_dir)


def log_of(run_dir: str | Path) -> Path:
    """The log of the daemon that was started with this run directory."""
    return Path(run_dir).parent / "daemon.log"


@lru_cache(maxsize=16)
def check_settings(settings: tuple[tuple[str, str], ...]) -> None:
    """Raises ValueError, in one line, for settings that no daemon would start with. For the driver, which checks by the
    daemon's own parts where it has them. Once in a process: it takes half a second.
    """
    if find_spec("sidecar") is None:
        return
    try:
        done = _config_check(settings)
    except OSError as error:
        where = error.filename or tempfile.gettempdir()
        raise ValueError(
            f"kafka_sidecar: the settings cannot be checked: {where}: {error.strerror}."
        ) from None
    if done.returncode:
        said = " ".join(done.stderr.split())
        raise ValueError(f"kafka_sidecar: {said}")


def _config_check(settings: Iterable[tuple[str, str]]) -> subprocess.CompletedProcess[str]:
    with tempfile.TemporaryDirectory() as folder:
        config = Path(folder) / "daemon.properties"
        _write_private(config, _properties({**DEFAULTS, **dict(settings)}))
        command = [sys.executable, "-P", "-m", "sidecar", "config", "check", "-c", str(config)]
        done = subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            cwd="/",
            env=_environment(),
            check=False,
        )
    done.stderr = done.stderr.replace(f" ({config})", "")
    return done


def _usual_home() -> Path:
    """Not the job's own temporary folder: a YARN container's is gone with it, and no other container sees it."""
    named = os.environ.get(HOME_VARIABLE)
    return Path(named) if named else Path("/tmp") / f"kafka-sidecar-{os.geteuid()}"


def _unusable(path: object, error: OSError) -> str:
    return (
        f"No daemon can be started: {path} cannot be used ({error.strerror}); make room for it, or name another folder "
        f"by {HOME_VARIABLE}."
    )


def _own_folder(path: Path) -> Path:
    """``path`` as a folder that only this user can enter. Made if it is not there. Raises DaemonNotStarted."""
    try:
        with contextlib.suppress(FileExistsError):
            path.mkdir(mode=0o700, parents=False)
        found = os.lstat(path)
    except OSError as error:
        raise DaemonNotStarted(_unusable(path, error)) from None
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.geteuid() or stat.S_IMODE(found.st_mode) & 0o077:
        raise DaemonNotStarted(
            f"No daemon can be started: {path} is not a folder of this user's alone (uid {found.st_uid}, mode "
            f"{stat.S_IMODE(found.st_mode):04o}); remove it, or name another folder by {HOME_VARIABLE}."
        )
    return path


def _name_of(settings: Mapping[str, str]) -> str:
    """Short: with it the path of a socket must fit into some 100 bytes. Another version is another daemon."""
    told = json.dumps([_installed_version(), sys.executable, sorted(settings.items())])
    return hashlib.sha256(told.encode()).hexdigest()[:12]


@lru_cache(maxsize=1)
def _installed_version() -> str:
    """Read once in a process, as each task asks for its daemon."""
    try:
        return version("kafka-sidecar")
    except PackageNotFoundError:
        return ""


def _listens(run_dir: Path) -> bool:
    """Whether somebody accepts connections there. A daemon that is ending has closed its socket."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as asked:
        try:
            asked.connect(str(run_dir / CONTROL_SOCKET))
        except OSError:
            return False
    return True


def _takes_clients(run_dir: Path) -> bool:
    """Whether it listens and a worker is ready: before that, a client would wait, and for 5 s only."""
    try:
        found = json.loads((run_dir / "daemon.json").read_text())
    except (OSError, ValueError):
        return False
    return any(each["state"] == "ready" for each in found["workers"]) and _listens(run_dir)


def _is_there(run_dir: Path) -> bool:
    """Whether a daemon takes clients. Waits for one that is ending, which delivers what it holds, and for one whose
    starter was killed before it was ready. Raises DaemonNotStarted. The lock is held.
    """
    deadline_s = time.monotonic() + START_S
    while not _takes_clients(run_dir):
        if not _has_holder(run_dir / LOCK_FILE):
            return False
        if time.monotonic() > deadline_s:
            raise DaemonNotStarted(
                f"The daemon at {run_dir} has neither taken clients nor ended for {START_S:g} s (its log: "
                f"{log_of(run_dir)})"
            )
        time.sleep(POLL_S)
    return True


def _wait_until(is_so: Callable[[], bool]) -> bool:
    deadline_s = time.monotonic() + START_S
    while not is_so():
        if time.monotonic() > deadline_s:
            return False
        time.sleep(POLL_S)
    return True


@contextlib.contextmanager
def _locked(path: Path) -> Iterator[int]:
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX)
        yield fd
    finally:
        os.close(fd)


def _start(place: Path, run_dir: Path, settings: Mapping[str, str], lock: int) -> None:
    """Start the daemon and wait until it takes clients. ``lock`` is held."""
    _raise_if_just_failed(place / "failed")
    published = run_dir / "daemon.json"
    # Or the worker of one that was killed would count as ready.
    published.unlink(missing_ok=True)
    config = place / "daemon.properties"
    _write_private(config, _properties(_with_pool(settings, place / "pool")))
    with log_of(run_dir).open("wb") as log_file:
        process = DetachedProcess(
            _command(config, run_dir), log_file, _environment(), lock=lock, published=published
        )
    if not _wait_until(lambda: process.exit_status() is not None or _takes_clients(run_dir)):
        process.kill()
        _fail(place, run_dir, f"it took no clients within {START_S:g} s")
    status = process.exit_status()
    process.let_go()
    if status is not None:
        _fail(place, run_dir, f"it ended with status {status}")
    (place / "failed").unlink(missing_ok=True)


def _has_holder(path: Path) -> bool:
    """Whether a daemon holds its run directory: for its life it has a flock on this file."""
    try:
        fd = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(fd)
    return False


def _command(config: Path, run_dir: Path) -> list[str]:
    """``-P``: the working folder of a Spark task is the job's, and a file in it must not be taken for a module."""
    return [sys.executable, "-P", "-m", "sidecar", "run", "-c", str(config), "--run-dir", str(run_dir)]


def _environment() -> dict[str, str]:
    """Settings in variables of the job would win over the file. The job's packages are found where they lie now."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("KAFKA_SIDECAR_")}
    return kept | {"PYTHONPATH": os.pathsep.join(str(Path(each).absolute()) for each in sys.path if each)}


def _write_private(path: Path, text: str) -> None:
    """Whole or not at all, and at no time readable for others."""
    fd, name = tempfile.mkstemp(dir=path.parent)  # mode 0600
    with os.fdopen(fd, "w", encoding="utf-8") as file:
        file.write(text)
    Path(name).replace(path)


def _properties(settings: Mapping[str, str]) -> str:
    return "".join(f"{name}={_escaped(value)}\n" for name, value in sorted(settings.items()))


def _with_pool(settings: Mapping[str, str], file: Path) -> Mapping[str, str]:
    """The pool on a disk where /dev/shm is too small for it, as in most containers (64 MiB by default)."""
    if "pool.path" in settings:
        return settings
    try:
        wanted = int(settings.get("buffer.memory", POOL_BYTES))
        found = os.statvfs("/dev/shm")
    except (OSError, ValueError):  # a wrong number: the daemon says so
        return settings
    free = found.f_bavail * found.f_frsize
    if free >= wanted + POOL_SPARE_BYTES:
        return settings
    log.warning(
        "The daemon's pool of %d MiB does not fit into /dev/shm, which has %d MiB free: it is the file %s instead. A "
        "larger /dev/shm or a smaller kafka.buffer.memory keeps it in memory.",
        wanted >> 20,
        free >> 20,
        file,
    )
    return {**settings, "pool.path": str(file)}


def _escaped(value: str) -> str:
    """As java.util.Properties writes a value."""
    escaped = value.replace("\\", "\\\\").replace("\n", "\\n").replace("\r", "\\r").replace("\t", "\\t")
    return f"\\{escaped}" if escaped[:1] in {" ", "\f"} else escaped


def _raise_if_just_failed(path: Path) -> None:
    try:
        found = json.loads(path.read_text())
    except (OSError, ValueError):
        return
    if 0 <= time.time() - found["at_s"] < FAILED_S:
        raise DaemonNotStarted(found["sentence"])


def _fail(place: Path, run_dir: Path, what: str) -> None:
    """Raise DaemonNotStarted, here and for all who ask within FAILED_S."""
    path = log_of(run_dir)
    lines = path.read_bytes()[-LAST_LINES_MAX_BYTES:].decode(errors="replace").strip().splitlines()
    last = f": {lines[-1][-LOG_QUOTED_MAX_BYTES:]}" if lines else ""
    sentence = f"The daemon for this host did not start, {what}{last} (its log: {path})"
    with contextlib.suppress(OSError):  # a full disk may be why it failed
        _write_private(place / "failed", json.dumps({"at_s": time.time(), "sentence": sentence}))
    raise DaemonNotStarted(sentence, lines[-LAST_LINES:])
