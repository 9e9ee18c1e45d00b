"""Read by Python at the start of a daemon that a test gave this folder in PYTHONPATH: lets its own code fail.

``SIDECAR_TEST_FAULT`` names a file. While it is there, the place that it names raises: once, and the file is
removed; or, with a ``!`` behind the name, each time.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

_FAULT = Path(os.environ["SIDECAR_TEST_FAULT"])


def _raise_at(owner: Any, method: str, place: str) -> None:
    usual = getattr(owner, method)

    def wrapped(*arguments: Any, **named: Any) -> Any:
        try:
            wanted = _FAULT.read_text()
        except OSError:
            wanted = ""
        if wanted.rstrip("!") == place:
            if not wanted.endswith("!"):
                _FAULT.unlink()
            raise RuntimeError(f"a fault of the test: {place}")
        return usual(*arguments, **named)

    setattr(owner, method, wrapped)


if "sidecar.worker" in sys.orig_argv:
    from sidecar.protocol.kio_guard import hide_hypothesis

    hide_hypothesis()

    from sidecar.producer.sender import Sender
    from sidecar.worker.brokers.produce_port import ProducePort
    from sidecar.worker.gauges import Gauges
    from sidecar.worker.outcomes.settlement import Settlement
    from sidecar.worker.topics.topics import Topics

    _raise_at(Sender, "poll", "iteration")
    _raise_at(Sender, "on_produce_response", "answer")
    _raise_at(Sender, "on_producer_id", "producer id")
    _raise_at(Settlement, "settle", "settlement")
    _raise_at(Topics, "on_entry", "submission")
    _raise_at(ProducePort, "send", "request")
    _raise_at(Gauges, "publish", "housekeeping")
elif "sidecar" in sys.orig_argv and "run" in sys.orig_argv:
    from sidecar.controller.cluster.metadata_fetcher import MetadataFetcher

    _raise_at(MetadataFetcher, "_take", "metadata")
