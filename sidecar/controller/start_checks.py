"""Checks before a start: what is refused here is refused in one sentence, before anything is changed.

``main`` calls them once, before the controller's loop runs.
"""

from __future__ import annotations

import logging
import os
from pathlib import Path

from sidecar.config.settings import SidecarConfig
from sidecar.controller.rundir.own_files import replacers
from sidecar.controller.rundir.run_dir import RunDirError
from sidecar.shm.private_files import close_folder_to_others, make_folder

log = logging.getLogger(__name__)

NAMED_MAX = 3


def check_cpus(config: SidecarConfig) -> None:
    """Check that this process may use the configured CPUs. Raises RunDirError."""
    cpus = config.values["daemon.cpus"]
    usable = os.sched_getaffinity(0)
    wrong = [int(cpu) for cpu in cpus if int(cpu) not in usable] if isinstance(cpus, list) else []
    if wrong:
        raise RunDirError(
            f"daemon.cpus names CPU {', '.join(map(str, wrong))}, and this process may use only "
            f"{', '.join(map(str, sorted(usable)))}: change it or leave it out."
        )


def warn_of_replacers(pool_path: str) -> None:
    """Warn when other users may replace the pool's file. Another user's file is never adopted, but ours could be moved
    away together with its records.
    """
    if not pool_path:
        return
    try:
        found = replacers(Path(pool_path))
    except OSError:
        return  # making the segment fails, with its own sentence
    for who in found:
        log.warning(
            "pool.path = %s can be taken away, with the records in it: %s rename or remove what is there. Give it a "
            "folder that only this user may write.",
            pool_path,
            who,
        )


def check_dead_letters(path: str) -> None:
    """Check the folder: a configured one must be usable now and not only at the first failure. The default one is made
    when it is needed.
    """
    if not path:
        return
    folder = Path(path).absolute()
    try:
        make_folder(folder)
    except OSError as error:
        raise RunDirError(
            f"dead_letters.path = {path} cannot be used ({error.strerror or error}): choose another folder."
        ) from None
    if not os.access(folder, os.W_OK | os.X_OK):
        raise RunDirError(
            f"dead_letters.path = {path} cannot be written by this user: change its permissions, or "
            "choose another folder."
        )
    closed = close_folder_to_others(folder)
    if closed:
        log.warning(
            "Dead letters in %s could be read by others (%s): they are this user's alone now.",
            folder,
            ", ".join(closed[:NAMED_MAX]) + (" and more" if len(closed) > NAMED_MAX else ""),
        )
