"""Words for what a process or its system lacks, so that a producer cannot start there, or finds no daemon."""

# ruff: noqa: PTH110

from __future__ import annotations

import os
import sys
from typing import Final

from client_stub.contract.run_dir import RUN_DIR_VARIABLE
from client_stub.contract.wire import TCP_PREFIX
from client_stub.errors import ENDED_TEXT, StartFailed
from client_stub.system.originals import refused

NOBODY_LISTENS: Final = "nobody listens there"
"""How the transport's message about a socket without a daemon ends."""
_SYSTEMS: Final = {"darwin": "macOS", "win32": "Windows"}


def check_system() -> None:
    """Raises StartFailed on a system that a producer cannot run on. Its fakes can, so nothing checks this earlier."""
    if not hasattr(os, "eventfd"):
        raise StartFailed(
            f"A producer needs Linux, and this is {_SYSTEMS.get(sys.platform, sys.platform)}: run the program on Linux "
            "or in a Linux container. Tests of it run here with client_stub.testing.FakeProducer.",
            retriable=False,
        )


def check_interpreter() -> None:
    """Raises StartFailed when the interpreter is being taken down: some releases of Python wait for ever for a new
    thread. Also when something has replaced a function that the io thread needs, and does not give it back.
    """
    if refused:
        raise StartFailed(
            f"{refused[0]}() of this process is not Python's own, and neither gevent nor eventlet has replaced it: "
            "import client_stub before whatever replaces it, as a producer needs a real thread.",
            retriable=False,
        )
    if sys.is_finalizing():
        raise StartFailed(ENDED_TEXT, retriable=False)


def start_failed(error: OSError | MemoryError | RuntimeError) -> StartFailed:
    """The error of a producer that got no descriptor, no memory or no thread."""
    if isinstance(error, MemoryError):
        why, advice = (
            "no memory is left",
            "free some, or raise the limit (ulimit -v, or that of the container)",
        )
    elif isinstance(error, OSError):
        why, advice = error.strerror or str(error), "close files, or raise the limit (ulimit -n)"
    elif "shutdown" in str(error):
        return StartFailed(
            "The producer cannot start: this process ends, and Python starts no thread any more. Send the first record "
            "before the main thread is over.",
            retriable=False,
        )
    else:
        why, advice = (
            str(error),
            "end threads, or raise the limit (ulimit -u, ulimit -v, or pids.max of the container)",
        )
    return StartFailed(f"The producer cannot start ({why}): {advice}. A later send tries again.")


def unreachable_text(path: str, waited_ms: float, last_word: str) -> str:
    """An error text of one or two sentences: the path that was tried, what was found there, and how to start a
    daemon.
    """
    host, waited = os.uname().nodename, f"(waited {waited_ms / 1000:.3g} s)"
    if last_word and not last_word.endswith(NOBODY_LISTENS):
        return f"The kafka-sidecar daemon at {path} on host {host} cannot be used {waited}: {last_word}"
    if path.startswith(TCP_PREFIX):
        return (
            f"No kafka-sidecar daemon answers at {path} {waited}: see that it runs, that daemon.listen of its "
            "configuration names this port, and that no firewall is between."
        )
    seen = "the socket does not exist" if not os.path.exists(path) else "nobody answered"
    return (
        f"No kafka-sidecar daemon at {path} on host {host}: {seen} {waited}. Start it with 'kafka-sidecar run', "
        f"or name its run directory by run_dir or {RUN_DIR_VARIABLE}."
    )
