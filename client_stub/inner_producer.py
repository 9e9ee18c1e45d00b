"""InnerProducer: the Producer inside a twin or a sink, which needs more of the engine than a program does.

kafka_python's twin, the logging handler, the Spark sink and `replay` use it, in their callers' threads.
"""

from __future__ import annotations

from client_stub.engine.engine import Engine
from client_stub.producer import Producer


class InnerProducer(Producer):
    """A Producer whose engine its owner may use."""

    @property
    def engine(self) -> Engine:
        return self._engine
