"""Goal: a wrong configuration that lives for two seconds costs no producer its life, and no record its outcome.

Method: twenty producers send to a broker that is slow to answer. The daemon's file is made wrong, and then what it was.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from client_stub import Producer
from client_stub.contract.tcp import KEY_FILE_VARIABLE
from client_stub.errors import DaemonRefused
from client_stub.zmtp.curve import KeyPair
from sidecar.common.model import ExitStatus
from sidecar.tools.testing.daemon import SidecarDaemon, StartDaemon
from sidecar.tools.testing.fake_broker import FakeBroker
from sidecar.tools.testing.fault_rules import on
from sidecar.tools.testing.kafka_frames import Api
from sidecar.tools.testing.ledger import RecordId
from sidecar.tools.testing.steady_load import SteadyClient
from sidecar.tools.testing.tcp_access import TcpAccess
from sidecar.tools.testing.waiting import wait_until

pytestmark = [pytest.mark.process, pytest.mark.unmeasured]

CLIENTS = 20
NAMES = [f"app-{n}" for n in range(CLIENTS)]
ANSWER_MS = 500
WRONG_S = 2.0
TOKEN = "right" * 5


@pytest.fixture
def broker() -> Iterator[FakeBroker]:
    with FakeBroker({"orders": 3}) as broker:
        broker.add(on(Api.PRODUCE).delay_answer(ANSWER_MS))
        yield broker


def tables(token_file: Path, uid: int) -> str:
    return "".join(f'[clients.{name}]\ntoken.file = "{token_file}"\nuids = [{uid}]\n' for name in NAMES)


def reload(daemon: SidecarDaemon) -> None:
    done = daemon.command("reload")
    assert done.returncode == ExitStatus.OK, done.stderr + daemon.log_tail()


def take_over(daemon: SidecarDaemon) -> None:
    daemon.spawn("--takeover")
    daemon.wait_ready()


def load_through(
    daemon: SidecarDaemon,
    broker: FakeBroker,
    address: Path | str,
    token: str | None,
    make_wrong: Callable[[], None],
    make_right: Callable[[], None],
) -> None:
    """Fails for a producer that does not go on, and for a record with another outcome than its place in the log."""
    clients = [SteadyClient(address, "orders", name, burst=2, pause_s=0.02, token=token) for name in NAMES]

    def all_deliver() -> bool:
        since_s = time.monotonic()
        wait_until(
            lambda: all(each.raised is not None or each.last_delivered_s > since_s for each in clients),
            "an outcome at each client",
            timeout_s=60,
            describe=daemon.log_tail,
        )
        return all(each.raised is None for each in clients)

    try:
        assert all_deliver()
        make_wrong()
        # They are detached by now, and ask again in vain: that long the file is wrong.
        log = daemon.log_path
        wait_until(
            lambda: all(f"{name}" in log.read_text() for name in NAMES),
            "each client's refusal",
            describe=daemon.log_tail,
        )
        time.sleep(WRONG_S)
        make_right()
        assert all_deliver(), next(each.raised for each in clients if each.raised is not None)
        for client in clients:
            client.finish()
    finally:
        for client in clients:
            client.abandon()
    places = {
        RecordId.decode(record.value): (partition, record.offset)
        for partition in range(3)
        for record in broker.records("orders", partition)
    }
    for client in clients:
        assert len(client.outcomes) == client.sent
        for number, error, place in client.outcomes:
            assert error is None, f"{client.name} {number}: {error!r}"
            assert place == places.pop(RecordId(client.name, number))
    assert not places
    assert not broker.bad_batches


@pytest.mark.parametrize("mistake", ["unlisted", "token", "uid", "takeover"])
def test_through_the_run_directory(
    start_daemon: StartDaemon, broker: FakeBroker, tmp_path: Path, mistake: str
) -> None:
    right_token, other_token = tmp_path / "right", tmp_path / "other"
    for path, text in ((right_token, TOKEN), (other_token, "other" * 5)):
        path.touch(0o600)
        path.write_text(text)
    file = tmp_path / "sidecar.toml"
    uid = os.getuid()
    is_listed = mistake != "unlisted"
    right = tables(right_token, uid) if is_listed else ""
    wrong = {
        "unlisted": '[daemon]\nunlisted_clients = "deny"\n',
        "token": tables(other_token, uid),
        "uid": tables(right_token, uid + 1),
        "takeover": '[daemon]\nunlisted_clients = "deny"\n',
    }[mistake]
    file.write_text(right)
    daemon = start_daemon(broker.bootstrap_servers, config=file)
    change = take_over if mistake == "takeover" else reload

    def use(text: str) -> None:
        file.write_text(text)
        change(daemon)

    def make_wrong() -> None:
        use(wrong)
        for _ in range(2):
            with pytest.raises(DaemonRefused, match=f'Client "{NAMES[0]}" of uid {uid}'):
                begun_meanwhile.send("orders", b"v")

    def sent() -> bool:
        with contextlib.suppress(DaemonRefused):
            return begun_meanwhile.send("orders", b"v").result(30).offset >= 0
        return False

    with Producer(daemon.run_dir, NAMES[0], token=TOKEN, connect_timeout_ms=60_000) as begun_meanwhile:
        load_through(
            daemon, broker, daemon.run_dir, TOKEN if is_listed else None, make_wrong, lambda: use(right)
        )
        wait_until(sent, "the producer that began meanwhile to be admitted")


def test_a_key_that_was_taken_out_and_put_back(
    start_daemon: StartDaemon, broker: FakeBroker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    access = TcpAccess(tmp_path, NAMES)
    monkeypatch.setenv(KEY_FILE_VARIABLE, str(access.key_file))
    daemon = start_daemon(broker.bootstrap_servers, settings=access.settings, config=access.config)

    def make_wrong() -> None:
        access.allow(NAMES, KeyPair.new())
        reload(daemon)

    def make_right() -> None:
        access.allow(NAMES)
        reload(daemon)

    load_through(daemon, broker, access.address, None, make_wrong, make_right)
