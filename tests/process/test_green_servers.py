"""Goal: servers of green threads send as others do: gunicorn, Celery and Flask-SocketIO, with forks after the import.

Method: the real servers, before a real daemon and a broker in Python. Its log is compared with what requests got.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import urllib.request
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from http.client import HTTPConnection
from pathlib import Path
from socket import AF_UNIX, socket
from typing import Any

import pytest

from sidecar.tools.testing.daemon import SidecarDaemon
from sidecar.tools.testing.fake_broker import FakeBroker
from sidecar.tools.testing.ledger import Ledger
from sidecar.tools.testing.waiting import wait_until
from tests.process.green_queue import queue_in
from tests.process.test_green_threads import broker, check, daemon

# Without coverage in the children: its hooks are no part of what is tried here.
pytestmark = [pytest.mark.process, pytest.mark.unmeasured]

__all__ = ["broker", "daemon"]

HERE = Path(__file__).parent
REQUESTS, RECORDS = 20, 10
PATIENCE_S = 90.0


@contextlib.contextmanager
def serving(
    daemon: SidecarDaemon, folder: Path, words: Sequence[str], **variables: str
) -> Iterator[subprocess.Popen[str]]:
    """A server that is stopped at the end. Its errors stand in ``folder/errors``."""
    with (folder / "errors").open("w") as errors:
        server = subprocess.Popen(
            [sys.executable, "-W", "ignore", *words],
            cwd=HERE,
            env=os.environ | {"KAFKA_SIDECAR_RUN_DIR": str(daemon.run_dir), **variables},
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
        )
    try:
        yield server
    finally:
        server.terminate()
        with server:
            server.wait(PATIENCE_S)
        logged = (folder / "errors").read_text()
        assert "Traceback" not in logged and "client_stub" not in logged, logged


def asked_at_once(ask: Any) -> list[dict[str, Any]]:
    with ThreadPoolExecutor(REQUESTS) as pool:
        return list(pool.map(ask, [f"request-{number}" for number in range(REQUESTS)]))


def balance(broker: FakeBroker, ledger: Ledger, reports: list[dict[str, Any]]) -> None:
    check(broker, ledger, [(each["name"], len(each["delivered"]), each["delivered"]) for each in reports])


class UnixConnection(HTTPConnection):
    def __init__(self, path: Path) -> None:
        super().__init__("localhost", timeout=PATIENCE_S)
        self._path = path

    def connect(self) -> None:
        self.sock = socket(AF_UNIX)
        self.sock.settimeout(PATIENCE_S)
        self.sock.connect(str(self._path))


@pytest.mark.parametrize("preload", [True, False], ids=["preload", "each"])
def test_gunicorn_with_gevent(
    broker: FakeBroker, daemon: SidecarDaemon, ledger: Ledger, short_dir: Path, preload: bool
) -> None:
    """With --preload the producer has sent in the parent, and gunicorn patches after the fork: late."""
    door = short_dir / "door"
    words = ["-m", "gunicorn", "-k", "gevent", "-w", "2", "--bind", f"unix:{door}", "green_app:application"]
    words += ["--preload"] if preload else []

    def ask(name: str) -> dict[str, Any]:
        connection = UnixConnection(door)
        connection.request("GET", f"/{name}/{RECORDS}")
        answer = connection.getresponse()
        text = answer.read().decode()
        assert answer.status == 200, text
        report: dict[str, Any] = json.loads(text)
        return report

    with serving(daemon, short_dir, words, GREEN_PARENT_SENDS=str(int(preload))) as server:
        reports = []
        if preload:
            assert server.stdout is not None
            reports.append(json.loads(server.stdout.readline()))
        wait_until(door.exists, "gunicorn listens", timeout_s=PATIENCE_S)
        reports += asked_at_once(ask)
    assert server.pid not in {each["pid"] for each in reports if each["name"] != "parent"}
    balance(broker, ledger, reports)


@pytest.mark.parametrize("pool", ["gevent", "eventlet"])
def test_celery(
    broker: FakeBroker, daemon: SidecarDaemon, ledger: Ledger, short_dir: Path, pool: str
) -> None:
    for name in ("queue", "control", "results"):
        (short_dir / name).mkdir()
    words = [
        "-m",
        "celery",
        "-A",
        "green_app:celery",
        "worker",
        "-P",
        pool,
        "-c",
        str(REQUESTS),
        "-l",
        "WARNING",
    ]
    queue = queue_in(str(short_dir))
    with serving(daemon, short_dir, words, GREEN_QUEUE=str(short_dir)):
        tasks = [queue.send_task("send", (f"task-{number}", RECORDS)) for number in range(REQUESTS)]
        reports = [task.get(timeout=PATIENCE_S) for task in tasks]
    balance(broker, ledger, reports)


@pytest.mark.parametrize("patch", ["gevent", "eventlet"])
def test_flask_socketio(
    broker: FakeBroker, daemon: SidecarDaemon, ledger: Ledger, short_dir: Path, patch: str
) -> None:
    patches = {
        "gevent": "from gevent.monkey import patch_all; patch_all()",
        "eventlet": "import eventlet; eventlet.monkey_patch()",
    }
    program = f"{patches[patch]}; import green_app; green_app.serve_socketio({patch!r})"
    with serving(daemon, short_dir, ["-c", program]) as server:
        assert server.stdout is not None
        port = int(server.stdout.readline())

        def ask(name: str) -> dict[str, Any]:
            def answered() -> Any:
                with contextlib.suppress(ConnectionError, urllib.error.URLError):
                    address = f"http://127.0.0.1:{port}/{name}/{RECORDS}"
                    return urllib.request.urlopen(address, timeout=PATIENCE_S).read()
                return None

            report: dict[str, Any] = json.loads(
                wait_until(answered, "the server answers", timeout_s=PATIENCE_S)
            )
            return report

        reports = asked_at_once(ask)
    balance(broker, ledger, reports)
