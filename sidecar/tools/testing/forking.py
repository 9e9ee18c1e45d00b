"""fork_and_collect: fork many children and collect the result of each."""

from __future__ import annotations

import json
import os
import sys
import traceback
from collections.abc import Callable
from typing import Any


def fork_and_collect(count: int, work: Callable[[int], Any]) -> list[Any]:
    """Fork ``count`` children at once; child ``n`` ends with ``work(n)``. Returns their results, in order of ``n``.

    A result travels through a pipe as JSON. None stands for a child that failed (its traceback is on stderr) or was
    killed. Call it in a process with one thread: other threads do not exist in the children.
    """
    children: list[tuple[int, int]] = []
    for number in range(count):
        reader, writer = os.pipe()
        pid = os.fork()
        if pid == 0:
            status = 1
            try:
                os.close(reader)
                with os.fdopen(writer, "w") as pipe:
                    json.dump(work(number), pipe)
                status = 0
            except BaseException:
                traceback.print_exc()
            finally:
                sys.stderr.flush()
                os._exit(status)
        os.close(writer)
        children.append((pid, reader))
    results: list[Any] = []
    for pid, reader in children:
        with os.fdopen(reader) as pipe:
            text = pipe.read()
        _, status = os.waitpid(pid, 0)
        results.append(json.loads(text) if text and not status else None)
    return results
