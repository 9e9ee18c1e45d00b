"""A process that is nobody's child once it runs: what counts, limits or kills its starter's processes misses it.

A session of its own saves it from a kill of the starter's process group. Those who walk from parent to child, as YARN
does to count a container's memory, would still find it. So a second process is between the two: it starts the program
in a session of its own, waits with the starter for its end, and goes away when it is let go. Then the program is
init's.
"""

from __future__ import annotations

import contextlib
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO, Final

_BETWEEN: Final = """\
import os, select, signal, sys
lock, published, command = int(sys.argv[1]), sys.argv[2], sys.argv[3:]
os.set_inheritable(lock, False)
pid = os.fork()
if not pid:
    os.setsid()
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.execv(command[0], command)
asked = [0]
while asked or not os.path.exists(published):
    told = select.select(asked, [], [], 0.02)[0]
    done, status = os.waitpid(pid, os.WNOHANG)
    if done:
        sys.exit(status >> 8 if os.WIFEXITED(status) else 128 + os.WTERMSIG(status))
    if told:
        asked = []
        if os.read(0, 1):
            os.kill(pid, signal.SIGKILL)
"""
"""A byte on its input kills the program; the end of its input lets it go. So does the death of the starter, whose lock
is then held until the program can be found by its file, so that nobody starts a second one.
"""


class DetachedProcess:
    """Watched until ``let_go()`` or ``kill()``; one of them is called once."""

    def __init__(
        self,
        command: Sequence[str],
        log: IO[bytes],
        environment: Mapping[str, str],
        *,
        lock: int,
        published: Path,
    ) -> None:
        """``lock``: the descriptor of a lock that the caller holds. ``published``: the file that the program writes
        when others can find it. Raises OSError.
        """
        self._between = subprocess.Popen(
            [sys.executable, "-I", "-S", "-c", _BETWEEN, str(lock), str(published), *command],
            stdin=subprocess.PIPE,
            stdout=log,
            stderr=log,
            start_new_session=True,
            pass_fds=(lock,),
            cwd="/",
            env=environment,
        )

    def exit_status(self) -> int | None:
        """None while it runs. 128 and a signal's number for one that a signal ended, as in a shell."""
        return self._between.poll()

    def kill(self) -> None:
        self._tell(b"k")

    def let_go(self) -> None:
        self._tell(b"")

    def _tell(self, word: bytes) -> None:
        with contextlib.suppress(BrokenPipeError):  # it has ended
            self._between.communicate(word)
