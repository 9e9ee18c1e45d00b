"""Goal: no name that a client chooses ends a line of the log, moves a terminal's cursor, or becomes markup.

Method: a raw client with line feeds, escapes and HTML in its name and in topics' names makes the daemon speak about
it. Then everything a person may look at is read.
"""

from __future__ import annotations

import contextlib
import secrets
import urllib.request
from collections.abc import Iterator

import pytest

from client_stub.contract.wire import PROTOCOL_VERSION, Kind
from sidecar.common.wording import printable
from sidecar.tools.testing.daemon import SidecarDaemon
from sidecar.tools.testing.fake_broker import FakeBroker
from sidecar.tools.testing.hostile_client import RECORD, Attacker, Link
from sidecar.tools.testing.metrics import http_address, http_get, metric
from sidecar.tools.testing.waiting import wait_until

pytestmark = pytest.mark.process

EVIL = "a\n2026-01-01 ERROR forged\x1b[2J\x07<script>\u202e"
MARKUP = "<script>"
MARKS = ("\x1b[2J", "\x07", "\u202e", MARKUP)
WITHOUT_MARKUP = ("log", "/metrics", "status", "top", "/")
"""Plain text, in which markup means nothing; the page's own script is markup."""


@pytest.fixture(scope="module")
def daemon() -> Iterator[SidecarDaemon]:
    settings = {"daemon.shutdown_timeout_s": 1}
    with (
        FakeBroker({"good": 1}) as broker,
        SidecarDaemon(broker.bootstrap_servers, settings=settings) as daemon,
    ):
        yield daemon


def attached(daemon: SidecarDaemon) -> tuple[Link, int]:
    control = Link(str(daemon.run_dir / "control.sock"))
    client_id = secrets.token_bytes(20)
    control.send([Kind.HELLO, PROTOCOL_VERSION, client_id, EVIL, 1, None])
    kind, endpoint, epoch, ticket = control.receive()
    assert kind == Kind.ASSIGNED
    control.close()
    link = Link(str(endpoint).removeprefix("ipc://"))
    link.send([Kind.ATTACH, PROTOCOL_VERSION, client_id, EVIL, 1, epoch, ticket, None])
    assert link.receive()[0] == Kind.WELCOME
    return link, epoch


def test_names_reach_neither_log_terminal_nor_page(daemon: SidecarDaemon) -> None:
    link, epoch = attached(daemon)
    attacker = Attacker(daemon.run_dir, 1)
    link.send(attacker.submit(epoch, topic=EVIL), RECORD)
    for _ in range(3):
        link.send([99, EVIL])
    link.send([Kind.BYE, True])
    wait_until(lambda: metric(daemon, "kafka_sidecar_malformed_frames_total") >= 3, "the malformed frames")
    wait_until(lambda: any("forged" in line for line in daemon.log_lines()), "a line about the client")
    wait_until(lambda: MARKUP in http_get(daemon, "/metrics"), "the topic's name in a label")
    with contextlib.suppress(OSError):
        link.close()
    shown = {"log": "".join(daemon.log_lines())}
    for path in ("/", "/api/status", "/status.json", "/metrics"):
        with urllib.request.urlopen(f"{http_address(daemon)}{path}", timeout=20) as answer:
            shown[path] = answer.read().decode()
            if path == "/metrics":  # a label has the topic's name: no browser may take it for markup
                assert answer.headers["Content-Type"].startswith("text/plain")
                assert answer.headers["X-Content-Type-Options"] == "nosniff"
    shown["status"] = daemon.command("status").stdout
    shown["top"] = daemon.command("top", "--iterations", "1").stdout
    for place, text in shown.items():
        found = [mark for mark in MARKS if mark in text and (mark != MARKUP or place not in WITHOUT_MARKUP)]
        assert not found, f"{place} shows {found}"
        assert not any(line.startswith("2026-01-01") for line in text.splitlines()), place
    assert "forged" not in shown["/"], "the page has a script of its own, and gets names from /api/status"
    assert "\\n2026-01-01 ERROR forged" in shown["log"], "it is there, escaped"


@pytest.mark.parametrize(
    ("text", "shown"),
    [("plain é", "plain é"), ("a\nb\tc\x1b", "a\\nb\\tc\\x1b"), ("\u202e\x85", "\\u202e\\x85")],
)
def test_unprintable_characters_are_escaped(text: str, shown: str) -> None:
    assert printable(text) == shown
