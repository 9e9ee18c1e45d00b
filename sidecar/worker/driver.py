"""Driver: the worker's only caller of the core. One clock read a turn; events in, effects out.

A turn follows every burst of input (frames from stubs, bytes from brokers, a metadata push, a timer):
poll the sender → carry out its effects → tell clients what is decided → give pages back → set the next timer.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from typing import TYPE_CHECKING, Any

import msgpack

from client_stub.wire import SUBMISSION_BYTES_MAX, SUBMISSION_RECORDS_MAX, Kind
from sidecar.worker.session import OUTBOX_FRAMES_MAX, ClientSession
from sidecar.worker.sessions import Refused, welcome

if TYPE_CHECKING:
    from sidecar.common.clock import MonotonicClock
    from sidecar.producer.effects import Effect
    from sidecar.producer.sender import Sender
    from sidecar.shm.slots import Counters
    from sidecar.worker.endpoint import Endpoint
    from sidecar.worker.intake import Intake
    from sidecar.worker.sessions import Sessions
    from sidecar.worker.tellings import Teller
