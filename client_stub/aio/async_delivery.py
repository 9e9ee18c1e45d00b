"""DeliveryFuture and AsyncBulkDelivery: the futures of AsyncProducer. Awaiting one does not block its loop."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Generator
from typing import TYPE_CHECKING, Any, Protocol

from client_stub.errors import SidecarError
from client_stub.native.hot import Delivery
from client_stub.outbox.delivery import BulkDelivery, submission_of
from client_stub.record_metadata import RecordMetadata
from client_stub.records.arguments import checked_wait

if TYPE_CHECKING:
    from client_stub.outbox.outbox import Outbox


class DeliveryFuture(asyncio.Future[RecordMetadata]):
    """The future of one record of AsyncProducer.send().

    Awaiting it ends linger, as Delivery.result() does: a task that waits adds nothing to the batch. ``asyncio.gather``
    and callbacks do not end linger.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, outbox: Outbox) -> None:
        super().__init__(loop=loop)
        self._outbox = outbox
        self.delivery: Delivery | None = None
        """None until the record is queued."""

    def __await__(self) -> Generator[Any, None, RecordMetadata]:
        if not self.done():
            self._outbox.expedite()
        return super().__await__()

    def cancel(self, msg: Any | None = None) -> bool:
        """Cancel the future; the record is still sent.

        Unless the caller gives a message, the CancelledError says what the record waits for. Under
        ``asyncio.wait_for`` and ``asyncio.timeout`` it is the cause of their TimeoutError.
        """
        if msg is None and not self.done():
            submission = None if self.delivery is None else submission_of(self.delivery)
            if submission is not None:
                msg = f"The record for topic {submission.topic} has no outcome yet{submission.why_no_outcome()}."
        return super().cancel(msg)


class AsyncBulkDelivery(BulkDelivery):
    """The future of all records of one send_many() or send_arrow() of AsyncProducer: ``count = await delivery``.

    Awaiting it ends linger and raises as ``result()``. Cancelling a task that awaits it cancels no record.
    ``result()`` itself is for threads.
    """

    __slots__ = ()

    def __await__(self) -> Generator[Any, None, int]:
        if not self.done():
            self._parts[0].submission.outbox.expedite()
        return awaited(self)

    def result(self, timeout: float | None = None) -> int:
        """As BulkDelivery.result(). Raises SidecarError on an event loop, which it would block."""
        timeout = checked_wait(timeout)
        refuse_on_a_loop(self, timeout)
        return super().result(timeout)


class AnyBulkDelivery(Protocol):
    """A BulkDelivery or a fake one."""

    def done(self) -> bool: ...

    def result(self, timeout: float | None = None) -> int: ...

    def watch(self) -> None: ...

    def add_done_callback(self, callback: Callable[[Any], object]) -> None: ...


def awaited(delivery: AnyBulkDelivery) -> Generator[Any, None, int]:
    """The implementation of ``delivery.__await__``."""
    delivery.watch()
    if not delivery.done():
        loop = asyncio.get_running_loop()
        over: asyncio.Future[None] = loop.create_future()

        def tell() -> None:
            if not over.done():
                over.set_result(None)

        def on_done(_: object) -> None:
            with contextlib.suppress(RuntimeError):  # the loop is closed, so no task waits any more
                loop.call_soon_threadsafe(tell)

        delivery.add_done_callback(on_done)
        yield from over
    return delivery.result(0)


def refuse_on_a_loop(delivery: AnyBulkDelivery, timeout: float | None) -> None:
    """Raises SidecarError for a wait that would block the event loop of this thread."""
    if timeout == 0 or delivery.done():
        return
    with contextlib.suppress(RuntimeError):
        asyncio.get_running_loop()
        raise SidecarError("result() would hold up the event loop: await the delivery itself.")
