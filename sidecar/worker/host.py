"""Host: the requests of a worker's rooms to their process."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from sidecar.common.control import ControlMessage


class Host(Protocol):
    """The process around a worker's rooms, implemented by Worker. All methods run on the worker's loop."""

    def send_control(self, message: ControlMessage) -> None:
        """Send a message to the controller; never blocks."""

    def wake_workers(self) -> None:
        """Wake the other workers: pages were given back, or the queue for pages moved, and one of them waits."""

    def give_up(self, why: str) -> None:
        """End the worker after a bug, because its memory can no longer be trusted. A successor takes over."""

    def set_timer(self, at_ms: float) -> None:
        """Run a turn at ``at_ms`` of the monotonic clock. Replaces the time set before."""

    def run_beside(self, work: Callable[[], None], done: Callable[[BaseException | None], None]) -> None:
        """Run ``work`` in the thread for slow disks, then ``done(error)`` on the loop. One at a time, in order."""
