"""Host: what the rooms of a worker ask of the process around them."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from sidecar.common.control import ControlMessage


class Host(Protocol):
    """The process of a worker, as its rooms see it. Everything runs on the worker's loop. See Worker."""

    def send_control(self, message: ControlMessage) -> None:
        """Send a message to the controller; never blocks."""

    def wake_workers(self) -> None:
        """Pages went back, or a place in the line, and another worker waits: wake the others."""

    def give_up(self, why: str) -> None:
        """A bug of ours: this memory is not to be trusted any more. The worker ends, and its successor takes over."""

    def set_timer(self, at_ms: float) -> None:
        """Run a turn at this time of the monotonic clock, instead of at the time that was set before."""

    def run_beside(self, work: Callable[[], None], done: Callable[[BaseException | None], None]) -> None:
        """Run ``work`` in a thread for slow disks; then ``done(error)`` on the loop. One work at a time, in order."""
