"""Fixtures that several files of process tests share."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import zmq


@pytest.fixture
def context() -> Iterator[zmq.Context[zmq.Socket[bytes]]]:
    """libzmq's, for hostile peers."""
    made: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    made.setsockopt(zmq.LINGER, 0)  # also of sockets that nobody holds any more
    yield made
    made.destroy(linger=0)
