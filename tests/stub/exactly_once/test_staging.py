"""Goal: a task without a daemon says what exactly once needs, which is another thing than at least once."""

from __future__ import annotations

from typing import Never

import pytest

pytest.importorskip("pyspark")

from pyspark.sql.types import Row

from client_stub.errors import DaemonUnreachable
from client_stub.spark import writer
from client_stub.spark.options import NO_DAEMON, read_options


class NoDaemon:
    def producer_for(self, options: object) -> Never:
        raise DaemonUnreachable("No daemon answers at /run/there.")


@pytest.mark.parametrize(
    ("delivery", "text"),
    [
        ("at_least_once", f"{NO_DAEMON}; .*sidecar.autostart=true starts one"),
        ("exactly_once", r"driver and all tasks use one daemon.*set option sidecar\.run_dir\.$"),
    ],
)
def test_task_without_a_daemon(monkeypatch: pytest.MonkeyPatch, delivery: str, text: str) -> None:
    monkeypatch.setattr(writer, "_cache", NoDaemon())
    options = read_options({"topic": "orders", "delivery": delivery, "sidecar.run_dir": "/run/there"})
    with pytest.raises(RuntimeError, match=rf"^kafka_sidecar: No daemon answers at /run/there\. .*{text}"):
        writer.write_rows([Row(value=b"a")], options)
