"""The calls that the bench makes on a producer."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable

from sidecar.tools.bench.workload import Workload

FLUSH_S = 300.0
"""How long a run may take to get its last acknowledgement before it counts as failed."""
WARM_S = 60.0

Done = Callable[[object, object], None]
"""Called once with the record's error or None, and the library's metadata. It is passed to the library directly."""


class Peer(ABC):
    """One producer in one process. Not thread-safe."""

    @abstractmethod
    def warm(self, topic: str) -> None:
        """Connect and deliver one record, so that sockets and metadata are there when the clock starts."""

    def prepare(self, workload: Workload) -> None:
        """Make the records in the form that the library takes, before the clock starts."""
        workload.make()

    @abstractmethod
    def send_all(self, workload: Workload) -> int:
        """Send the workload and wait for every outcome; returns how many were acknowledged."""

    @abstractmethod
    def close(self) -> None: ...


class TimedPeer(ABC):
    """One producer whose outcomes are timed one by one."""

    @abstractmethod
    def warm(self, topic: str) -> None: ...

    @abstractmethod
    def send(self, topic: str, key: bytes, value: bytes, done: Done) -> None: ...

    @abstractmethod
    def serve(self, seconds: float) -> None:
        """Wait and handle outcomes, for about ``seconds``."""

    @abstractmethod
    def flush(self) -> None:
        """End linger and wait until every outcome was reported."""

    @abstractmethod
    def close(self) -> None: ...


class Counter:
    """Counts acknowledgements; the first error is raised by ``check``."""

    def __init__(self) -> None:
        self.acked = 0
        self.error: object = None

    def on_delivery(self, error: object, _metadata: object = None) -> None:
        if error is None:
            self.acked += 1
        elif self.error is None:
            self.error = error

    def check(self) -> int:
        """The number of acknowledgements since the last call. Raises RuntimeError for the first failure."""
        if self.error is not None:
            raise RuntimeError(f"a record was not delivered: {self.error}")
        acked, self.acked = self.acked, 0
        return acked
