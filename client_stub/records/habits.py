"""Hints for users of other Kafka clients: the argument or setting here that replaces theirs.

Calls of producers use it when an argument is unknown, in the caller's thread.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from typing import Final

_SERVER: Final = r"(?:\w+://)?(?:[\w.-]+|\[[\w:.]+\]):\d+"
_SERVERS: Final = re.compile(rf"{_SERVER}(?:\s*,\s*{_SERVER})*")
_CONFIGURATION_TEXT: Final = (
    "bootstrap.servers and all other settings of Kafka are in the configuration of the daemon, which all producers "
    "of a host share. A producer needs none: Producer()."
)
_ARGUMENTS: Final = {
    "client_id": "client_name is its name here.",
    "timeout": "times are max_block_ms, connect_timeout_ms and delivery_timeout_ms.",
    "on_delivery": "send() takes a callback for its record.",
}
"""An argument that Producer does not take → the hint. Most other arguments of other clients are settings of the
daemon.
"""
_CALLBACKS: Final = frozenset({"callback", "on_delivery", "on_completion"})
_FIELDS: Final = {**dict.fromkeys(_CALLBACKS, "on_delivery"), "timestamp": "timestamp_ms", "data": "value"}
"""A field of a record in another client → its name here."""
_NEAR: Final = (
    "run_dir",
    "client_name",
    "token",
    "max_block_ms",
    "connect_timeout_ms",
    "delivery_timeout_ms",
    "on_error",
    "key_serializer",
    "value_serializer",
    "curve_key_file",
    "transactional_id",
    "transaction_timeout_ms",
)


def _nearest(name: str, names: Sequence[str]) -> str:
    """A hint with the nearest name, or an empty text."""
    from difflib import get_close_matches

    near = get_close_matches(name, names, 1, 0.75)
    return f"did you mean {near[0]}?" if near else ""


def unknown_argument(kind: str, name: str) -> str:
    """The text of a TypeError for a keyword argument of another client, or a misspelt one."""
    hint = _ARGUMENTS.get(name) or _nearest(name, _NEAR) or _CONFIGURATION_TEXT
    return f"{kind} takes no argument {name!r}: {hint}"


def unknown_field(call: str, name: str, known: Sequence[str]) -> str:
    """The text of a TypeError for a keyword argument that ``call`` does not take; ``known`` are those that it takes."""
    hint = ""
    if name in _CALLBACKS and "on_delivery" not in known:
        hint = "await what it returns for the outcome, or give that an add_done_callback()."
    elif name in _FIELDS and _FIELDS[name] in known:
        hint = f"{_FIELDS[name]} is its name here."
    all_known = f"it takes {', '.join(known)}."
    return f"{call} takes no argument {name!r}: {hint or _nearest(name, known) or all_known}"


def check_run_dir(run_dir: object) -> None:
    """Raises TypeError or ValueError for a first argument as other clients take it, and for anything that is not a
    path.
    """
    if isinstance(run_dir, Mapping):
        raise TypeError(f"run_dir is a path, not a configuration: {_CONFIGURATION_TEXT}")
    if isinstance(run_dir, list | tuple):
        raise TypeError(f"run_dir is a path, not a list of brokers: {_CONFIGURATION_TEXT}")
    if run_dir is None:
        return
    if not isinstance(run_dir, str | bytes | os.PathLike):
        raise TypeError(f"run_dir must be a path, not {type(run_dir).__name__}.")
    named = os.fsdecode(run_dir)
    if not named:
        raise ValueError("run_dir is empty: leave it out for the usual directory, or name the daemon's.")
    if "\0" in named:
        raise ValueError("run_dir has a null character, which no path can have.")
    is_tcp = named.startswith("tcp://")
    if not is_tcp and _SERVERS.fullmatch(named) and not os.path.exists(named):  # noqa: PTH110
        raise ValueError(f"run_dir is a path, not a list of brokers ({named}): {_CONFIGURATION_TEXT}")


def not_awaited(kind: str) -> TypeError:
    """The error for ``await`` of a future of Producer."""
    return TypeError(
        f"A {kind} cannot be awaited: result(timeout) waits for it in this thread; for an event loop take "
        "AsyncProducer in place of Producer."
    )


def no_pickle(kind: str) -> TypeError:
    """The error for copying or pickling a producer or its futures, or sending them to another process."""
    a_kind = f"An {kind}" if kind.startswith("A") else f"A {kind}"
    whose = "belongs to its process and cannot be pickled or copied"
    if kind.endswith("Producer"):
        return TypeError(f"{a_kind} {whose}: make one where it is used. A forked child has its own client.")
    return TypeError(f"{a_kind} {whose}: pass on its result().")
