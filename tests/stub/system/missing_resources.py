"""The child of test_missing_resources.py: tries each public call while one resource of its process is missing.

``python -m tests.stub.system.missing_resources RUN_DIR RESOURCE`` prints a line of JSON for each call: its name, and
the names of the classes of what it raised (none: it returned).
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import resource
import sys
import threading
from collections.abc import Callable, Coroutine, Iterator
from pathlib import Path
from typing import Any, Final

import pyarrow

from client_stub import AsyncProducer, Producer

WAIT_S: Final = 0.2
ASKS_S: Final = 1.05
"""A timeout after which the stub asks the daemon for the cause."""
LARGE: Final = bytes(900_000)
TABLE: Final = pyarrow.table({"value": [b"a", b"b"]})
ROW: Final = (b"key", b"value", [("name", b"header")], 0, 1)
NO_STACK: Final = 1 << 47
"""A thread with such a stack finds no place in the address space, so none can start."""
LIMITS: Final[dict[str, Any]] = {"max_block_ms": 3_000, "connect_timeout_ms": 3_000}
Call = Callable[[], object]


@contextlib.contextmanager
def without(what: str) -> Iterator[None]:
    """In its block nothing more of ``what`` is to be had; each is a real limit of this process."""
    match what:
        case "threads":
            before = threading.stack_size(NO_STACK)
            try:
                yield
            finally:
                threading.stack_size(before)
        case "descriptors":
            free = os.open(os.devnull, os.O_RDONLY)
            os.close(free)
            with _limit(resource.RLIMIT_NOFILE, free):
                yield
        case "memory maps":
            pages = int(Path("/proc/self/statm").read_text().split()[0])
            with _limit(resource.RLIMIT_AS, pages * resource.getpagesize()):
                yield
        case "folder":
            # Its working directory is gone, and paths are relative to it.
            os.mkdir("gone")  # noqa: PTH102
            os.chdir("gone")
            os.rmdir("../gone")  # noqa: PTH106
            try:
                yield
            finally:
                os.chdir("/")
        case _:
            yield


@contextlib.contextmanager
def _limit(which: int, value: int) -> Iterator[None]:
    before = resource.getrlimit(which)
    resource.setrlimit(which, (value, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(which, before)


def plain_calls(make: Callable[[], Producer]) -> dict[str, Call]:
    return {
        "stats": lambda: make().stats(),
        "takes_records": lambda: make().takes_records,
        "known_size_limit": lambda: make().known_size_limit,
        "size_limit": lambda: make().size_limit("t"),
        "check_size": lambda: make().check_size("t", (None, LARGE)),
        "partitions_for": lambda: make().partitions_for("t", WAIT_S),
        "send": lambda: make().send("t", b"value"),
        "send to a new topic": lambda: make().send("new", b"value"),
        "send of all fields": lambda: make().send(
            "t", b"v", b"k", [("a", None)], 0, 1, on_delivery=lambda *_: None
        ),
        "send of a large value": lambda: make().send("t", LARGE),
        "send_many": lambda: make().send_many("t", [(None, b"value")] * 3),
        "send_many of all fields": lambda: make().send_many("t", [ROW] * 3),
        "send_arrow": lambda: make().send_arrow("t", TABLE),
        "flush until accepted": lambda: make().flush(WAIT_S, until="accepted"),
        "flush": lambda: make().flush(ASKS_S),
        "close": lambda: make().close(WAIT_S),
        "close again": lambda: make().close(),
        "send after close": lambda: make().send("t", b"value"),
    }


def future_calls(producer: Producer) -> dict[str, Call]:
    """Of futures without an outcome."""
    delivery = producer.send("held", b"value")
    many = producer.send_many("held", [(None, b"value")] * 3)
    return {
        "Delivery.done": delivery.done,
        "Delivery.result": lambda: delivery.result(ASKS_S),
        "Delivery.exception": lambda: delivery.exception(WAIT_S),
        "Delivery.add_done_callback": lambda: delivery.add_done_callback(lambda _: None),
        "BulkDelivery.result": lambda: many.result(ASKS_S),
        "BulkDelivery.exception": lambda: many.exception(WAIT_S),
        "BulkDelivery.offsets": many.offsets,
        "BulkDelivery.add_done_callback": lambda: many.add_done_callback(lambda _: None),
    }


def async_calls(
    make: Callable[[], AsyncProducer], run: Callable[[Coroutine[Any, Any, object]], object]
) -> dict[str, Call]:
    return {
        "AsyncProducer.stats": lambda: make().stats(),
        "AsyncProducer.partitions_for": lambda: run(make().partitions_for("t", WAIT_S)),
        "AsyncProducer.send": lambda: run(make().send("t", b"value")),
        "AsyncProducer.send_and_wait": lambda: run(make().send_and_wait("t", b"value")),
        "AsyncProducer.send_many": lambda: run(make().send_many("t", [ROW] * 3)),
        "AsyncProducer.send_arrow": lambda: run(make().send_arrow("t", TABLE)),
        "AsyncProducer.flush": lambda: run(make().flush(ASKS_S)),
        "AsyncProducer.close": lambda: run(make().close(WAIT_S)),
    }


def tried(name: str, call: Call) -> None:
    """Print what the call did."""
    kinds: list[str] = []
    text = ""
    try:
        call()
    except Exception as error:
        kinds = [kind.__name__ for kind in type(error).__mro__]
        text = str(error)
    print(json.dumps([name, kinds, text]), flush=True)


def main(run_dir: str, what: str) -> None:
    loop = asyncio.new_event_loop()
    first = Producer(run_dir, "first", **LIMITS)
    first.send("t", b"value").result(10)

    used = Producer(run_dir, "used", **LIMITS)
    used.send("t", b"value").result(10)
    of_futures = future_calls(used)
    fresh = [Producer(run_dir, f"fresh {number}", **LIMITS) for number in range(3)]
    fresh_async = [AsyncProducer(run_dir, f"async {number}", **LIMITS) for number in range(3)]

    with without(what):
        tried("Producer()", lambda: Producer(run_dir, **LIMITS))
        tried("Producer() of a relative path", lambda: Producer("run", **LIMITS))
        tried("AsyncProducer()", lambda: AsyncProducer(run_dir, **LIMITS))
        # One that has tried in vain, which is to work once the resource is there again.
        tried("fresh: send alone", lambda: fresh[1].send("t", b"value"))
        tried(
            "fresh: AsyncProducer.send alone", lambda: loop.run_until_complete(fresh_async[1].send("t", b""))
        )
        for producer, state in [(fresh[0], "fresh"), (first, "used")]:
            for name, call in plain_calls(lambda producer=producer: producer).items():  # type: ignore[misc]
                tried(f"{state}: {name}", call)
        for name, call in of_futures.items():
            tried(name, call)
        for name, call in async_calls(lambda: fresh_async[0], loop.run_until_complete).items():
            tried(f"fresh: {name}", call)

    tried("afterwards: send", lambda: fresh[1].send("t", b"value").result(10))
    tried("afterwards: used", lambda: used.send("t", b"value").result(10))
    tried(
        "afterwards: AsyncProducer",
        lambda: loop.run_until_complete(fresh_async[1].send_and_wait("t", b"value")),
    )
    for each in (fresh[1], fresh[2], used):
        each.close(0)
    loop.run_until_complete(fresh_async[1].close(0))
    loop.close()


if __name__ == "__main__":
    main(*sys.argv[1:])
