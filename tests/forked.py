"""Running a part of a test in a forked child."""

from __future__ import annotations

import os
from collections.abc import Callable


def in_child(run: Callable[[], str]) -> str:
    """What ``run()`` returns in a forked child, or its error."""
    read, write = os.pipe()
    pid = os.fork()
    if not pid:
        try:
            text = run()
        except BaseException as error:
            text = f"{type(error).__name__}: {error}"
        os.write(write, text.encode())
        os._exit(0)
    os.close(write)
    with os.fdopen(read) as pipe:
        text = pipe.read()
    os.waitpid(pid, 0)
    return text
