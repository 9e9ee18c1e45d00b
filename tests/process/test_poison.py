"""Goal: a submission that kills whoever reads it takes three workers with it, and then fails alone."""

from __future__ import annotations

from pathlib import Path

import pytest

from client_stub import Producer
from client_stub.errors import SidecarError
from sidecar.common.own_process import KILL_POINTS
from sidecar.tools.testing.daemon import StartDaemon
from sidecar.tools.testing.fake_broker import FakeBroker
from sidecar.tools.testing.kill_points.orders import PASSED_FILE, give_order
from sidecar.tools.testing.metrics import metric
from sidecar.tools.testing.waiting import wait_until

pytestmark = pytest.mark.process

TIMEOUT_S = 60.0


@pytest.mark.parametrize("point", ["index.begin", "encode.begin"])
def test_the_daemon_heals_after_three_deaths(start_daemon: StartDaemon, tmp_path: Path, point: str) -> None:
    give_order(tmp_path, "1", point, text="POISON", always=True)
    with FakeBroker({"orders": 1, "others": 1}) as kafka:
        daemon = start_daemon(
            kafka.bootstrap_servers,
            settings={"daemon.workers": 1, "daemon.restart_backoff_max_ms": 50},
            environment={KILL_POINTS: str(tmp_path)},
        )
        with (
            Producer(run_dir=str(daemon.run_dir), client_name="bad") as bad,
            Producer(run_dir=str(daemon.run_dir), client_name="good") as good,
        ):
            before = good.send("others", b"before").result(timeout=TIMEOUT_S)
            poison = bad.send("orders", b"POISON")
            error = poison.exception(timeout=TIMEOUT_S)
            after = good.send("others", b"after").result(timeout=TIMEOUT_S)
            again = bad.send("orders", b"bread").result(timeout=TIMEOUT_S)
        assert isinstance(error, SidecarError)
        assert "POISON_SUBMISSION" in (type(error).__name__, str(error), getattr(error, "name", "")) or (
            "set aside" in str(error)
        )
        assert int(error.persistence) == (0 if point == "index.begin" else 1)
        assert (before.offset, after.offset, again.offset) == (0, 1, 0)
        assert len((tmp_path / PASSED_FILE).read_text().splitlines()) == 3
        assert [record.value for record in kafka.records("orders")] == [b"bread"]
        wait_until(
            lambda: metric(daemon, "kafka_sidecar_poison_submissions_total") == 1, "the metric to be scraped"
        )
        assert "POISON_SUBMISSION" in daemon.log_path.read_text()
        assert any(b"UE9JU09O" in path.read_bytes() for path in spool_files(daemon.run_dir)), (
            "its frame is kept"
        )


def spool_files(run_dir: Path) -> list[Path]:
    return [path for path in run_dir.rglob("*") if path.is_file() and "dead" in str(path)]
