"""Goal: without a daemon `status` says what the last one left, and the next one says where it comes from."""

from __future__ import annotations

import pytest

from client_stub import Producer
from sidecar.tools.testing.daemon import SidecarDaemon
from sidecar.tools.testing.fake_broker import FakeBroker
from sidecar.tools.testing.fault_rules import ALWAYS, on
from sidecar.tools.testing.kafka_frames import Api

pytestmark = [pytest.mark.process]

LEADER_NOT_AVAILABLE = 5


def test_the_records_of_a_dead_daemon_are_in_status() -> None:
    with FakeBroker({"orders": 1}) as kafka:
        refuses = kafka.add(on(Api.PRODUCE, times=ALWAYS).refuse(LEADER_NOT_AVAILABLE))
        daemon = SidecarDaemon(kafka.bootstrap_servers, settings={"daemon.workers": 1})
        try:
            daemon.start()
            pid = daemon.info()["pid"]
            producer = Producer(daemon.run_dir, client_name="web", on_error=lambda *_: None)
            for _ in range(3):
                producer.send("orders", b"x")
            producer.flush(30, until="accepted")
            daemon.kill_all()
            shown = daemon.command("status")
            assert shown.returncode == 69
            assert f"the last one (pid {pid}) is dead, and 3 records wait in its segment" in shown.stderr
            looked = daemon.command("replay", "--dry-run")
            assert (looked.returncode, looked.stderr) == (0, ""), "a look needs no daemon, and no letter yet"
            assert looked.stdout.startswith("0 dead letters in 0 files of")
            refuses.remove()
            daemon.start()
            assert daemon.status()["predecessor"]["held"] == "3 undelivered records (topic orders)"
            assert "its segment held 3 undelivered records" in daemon.command("status").stdout
            producer.flush(30)
            producer.close()
        finally:
            daemon.remove()
