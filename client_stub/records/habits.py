"""Hints for users of other Kafka clients: the call or setting here that replaces theirs."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from typing import Final, TypeVar

_Kind = TypeVar("_Kind", bound=type)

_TRANSACTIONS: Final = "transactions are not built yet"
_TWINS: Final = "or take client_stub.compat.confluent"
CALLS: Final = {
    # confluent-kafka
    "produce": f"send(topic, value, key, ..., on_delivery=...) is its name here, {_TWINS}",
    "produce_batch": f"send_many(topic, [(key, value), ...]) is its name here, {_TWINS}",
    "poll": "callbacks run in a thread of the producer, and nothing need be polled",
    "list_topics": "partitions_for(topic) knows one topic, and `kafka-sidecar topics` lists all",
    "purge": "close(0) fails all that is not delivered",
    "set_sasl_credentials": "the daemon has the credentials: see [kafka] in its configuration",
    # kafka-python and aiokafka
    "metrics": "stats() counts for this producer, and the daemon has metrics: `kafka-sidecar status` shows where",
    "bootstrap_connected": "`kafka-sidecar status` tells whether the daemon reaches Kafka",
    "start": "nothing need be started: the first send does it",
    "stop": "close() is its name here",
    "__enter__": "on an event loop it is `async with`, as its close() is awaited",
    "__aenter__": "it is `with`, as it waits in its thread; AsyncProducer has `async with`, for an event loop",
    "send_batch": "send_many(topic, [(key, value), ...]) is its name here",
    "create_batch": "send_many(topic, [(key, value), ...]) sends a batch",
    "send_and_wait": "send(...).result() waits for the outcome, and AsyncProducer has send_and_wait()",
    # Java
    "partitionsFor": "partitions_for(topic) is its name here",
    # Transactions, in all of them
    "init_transactions": _TRANSACTIONS,
    "begin_transaction": _TRANSACTIONS,
    "commit_transaction": _TRANSACTIONS,
    "abort_transaction": _TRANSACTIONS,
    "transaction": _TRANSACTIONS,
    "send_offsets_to_transaction": _TRANSACTIONS,
}
"""A name that Producer does not have → the hint."""
_PLACE: Final = "result(timeout) waits for the record and returns its position"
FUTURES: Final = {
    "get": "result(timeout) is its name here",
    "add_callback": "add_done_callback(callback) is its name here, and send() takes on_delivery",
    "add_errback": "add_done_callback(callback) is also called for failures, and send() takes on_delivery",
    "is_done": "done() is its name here",
    "succeeded": "exception() is None for a record that was delivered",
    "failed": "exception() is the error of a record that has failed",
    "topic": _PLACE,
    "partition": _PLACE,
    "offset": _PLACE,
    "cancel": "a record that was sent cannot be taken back",
}
"""A name that Delivery does not have → the hint. The compiled Delivery has a ``Missing`` for each."""
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
    "transactional_id": f"{_TRANSACTIONS}.",
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
)


class Missing:
    """A name of another client in a class that lacks it. It is not there, and its AttributeError has the hint.

    One ``__getattr__`` for all names would make each look-up of a method slower, also those that succeed.
    """

    def __init__(self, kind: str, name: str) -> None:
        hint = (FUTURES if kind.endswith("Delivery") else CALLS)[name]
        self._text = f"{kind} has no attribute {name!r}: {hint}."
        self._name = name
        self.__doc__ = f"Not here: {hint}."  # for help()

    def __get__(self, owner: object, kind: type) -> object:
        # An application's class may inherit the name from another class behind ours.
        for base in kind.__mro__:
            found = vars(base).get(self._name, self)
            if not isinstance(found, Missing):
                return found.__get__(owner, kind) if hasattr(found, "__get__") else found
        # Without an owner, as Python would otherwise put a "Did you mean" of its own behind the text of a traceback.
        raise AttributeError(self._text, name=self._name, obj=None)


def with_hints(kind: _Kind) -> _Kind:
    """Give a class a ``Missing`` for each name of other clients that it does not have. A decorator."""
    for name in FUTURES if kind.__name__.endswith("Delivery") else CALLS:
        if not hasattr(kind, name):
            setattr(kind, name, Missing(kind.__name__, name))
    kind.__dir__ = _present_names  # type: ignore[assignment]
    return kind


def _present_names(instance: object) -> list[str]:
    """The names for dir(), and so for a prompt that completes them: without each ``Missing``."""
    present = set(getattr(instance, "__dict__", ()))
    for base in type(instance).__mro__:
        present.update(name for name, each in vars(base).items() if not isinstance(each, Missing))
    return [name for name in object.__dir__(instance) if name in present]


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
