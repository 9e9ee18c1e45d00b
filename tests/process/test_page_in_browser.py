"""Goal: the page as a reader sees it, in a real headless Chromium, of a real daemon."""

from __future__ import annotations

import os
import secrets
import signal
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from client_stub import Producer
from sidecar.tools.testing.browser import Browser, find_browser
from sidecar.tools.testing.daemon import SidecarDaemon, StartDaemon
from sidecar.tools.testing.fake_broker import FakeBroker
from sidecar.tools.testing.metrics import http_address
from sidecar.tools.testing.waiting import wait_until
from tests.tools import needs

CHROMIUM = find_browser()
pytestmark = [
    pytest.mark.process,
    needs("chromium"),
]
PAGE_BYTES_MAX = 100_000
EVIL = "<script>document.title='owned'</script><img src=x onerror=\"document.title='owned'\">"


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    assert CHROMIUM is not None
    with Browser(CHROMIUM) as browser:
        yield browser


@pytest.fixture(scope="module")
def kafka() -> Iterator[FakeBroker]:
    with FakeBroker({"orders": 3, "clicks": 6}) as kafka:
        yield kafka


@pytest.fixture(scope="module")
def daemon(kafka: FakeBroker) -> Iterator[SidecarDaemon]:
    with SidecarDaemon(kafka.bootstrap_servers, settings={"max.block.ms": 3000}) as daemon:
        yield daemon


@pytest.fixture(autouse=True)
def fresh(browser: Browser) -> None:
    browser.look_like(width=1200)
    browser.requests.clear()
    browser.complaints.clear()


def test_it_shows_who_sends_what_and_what_failed(browser: Browser, daemon: SidecarDaemon) -> None:
    with Producer(daemon.run_dir, client_name="billing", on_error=lambda *_: None) as producer:
        for _ in range(20):
            producer.send("orders", b"x" * 100)
        producer.send("missing", b"x")
        producer.flush(30)
        browser.open(http_address(daemon))
        browser.wait_for("running", "#state")
        browser.wait_for("missing", "#failures")
        browser.wait_for("It runs, and records failed in the last 15 minutes", "#state")
        assert "failed, 15 min" in browser.text("#tiles")
        assert "METADATA_TIMEOUT" in browser.text("#failures")
        browser.wait_for("orders", "#topics")
        browser.wait_for("billing", "#clients")
        wait_until(lambda: browser.text("#workers").count("ready") == 2, "both workers")
        delivered = browser.text("#rates")
        producer.send("clicks", b"x").result(30)
        browser.wait_for("clicks", "#topics")  # by itself
    assert "delivered" in delivered
    own = urlsplit(http_address(daemon)).netloc
    assert {urlsplit(each).netloc for each in browser.requests} == {own}
    assert not browser.complaints, "an exception, or something that its policy refuses"


def test_old_failures_are_folded_without_alarm(browser: Browser, daemon: SidecarDaemon) -> None:
    """A green "Everything runs." stood above a red total of half an hour ago, and its rows pushed brokers and workers
    off the screen.
    """
    with Producer(daemon.run_dir, client_name="old", on_error=lambda *_: None) as producer:
        producer.send("missing", b"x")
        producer.flush(30)
    browser.open(http_address(daemon))
    browser.wait_for("missing", "#failures")
    assert browser.run("document.querySelector('#tiles .alert span').textContent") == "failed, 15 min"
    # An hour later: the history has no failure any more, the total and the row are still there.
    browser.run(
        "look = async () => {}; last.failures.forEach((each) => each.last_ms -= 3600e3);"
        "for (const name of ['records_failed_total', 'records_dead_lettered_total'])"
        " last.history.columns[name] = last.history.columns[name].map(() => 1); show(last)"
    )
    assert "Everything runs." in browser.text("#state")
    assert browser.run("document.querySelectorAll('#tiles .alert').length") == 0
    assert " in all" in browser.text("#tiles"), "the total goes on to be shown"
    assert "1 older than 15 minutes" in browser.text("#failures summary")
    assert "METADATA_TIMEOUT" not in browser.text("#failures"), "folded"
    browser.run("document.querySelector('#failures details').open = true")
    assert "METADATA_TIMEOUT" in browser.text("#failures")


def test_a_note_has_one_cause_its_commands_and_its_runbook(browser: Browser, daemon: SidecarDaemon) -> None:
    daemon.command("pause", "clicks")
    try:
        browser.open(http_address(daemon))
        browser.wait_for("Paused by an operator", "#state")
        assert browser.run("document.querySelector('#state li code').textContent") == "kafka-sidecar resume"
        assert "`" not in browser.text("main")
        link = "document.querySelector('#state li a.runbook')"
        assert browser.run(f"{link}.href").endswith("/docs/runbooks/KafkaSidecarRecordsWait.md")
        assert browser.run(f"{link}.rel") == "noreferrer", "nobody learns the daemon's address"
        browser.run(
            "last.notes = [{text: 'x', runbook: 'javascript:alert(1)'}]; look = async () => {}; show(last)"
        )
        assert browser.run("document.querySelectorAll('#state li a').length") == 0
    finally:
        daemon.command("resume")


def test_a_browser_that_is_closed_leaves_neither_processes_nor_folders(daemon: SidecarDaemon) -> None:
    assert CHROMIUM is not None
    with Browser(CHROMIUM) as own:
        own.open(http_address(daemon))
        home, pid = own._home, own._process.pid
        assert os.getpgid(pid) == pid
    with pytest.raises(ProcessLookupError):
        os.killpg(pid, 0)
    assert not home.exists()


def test_a_restart_of_a_worker_says_why(
    browser: Browser, kafka: FakeBroker, start_daemon: StartDaemon
) -> None:
    daemon = start_daemon(kafka.bootstrap_servers)
    browser.open(http_address(daemon))
    browser.wait_for("no restarts", "#workers")
    os.kill(daemon.worker_pids()[0], signal.SIGKILL)
    browser.wait_for("was killed by SIGKILL", "#workers table")
    assert "1 restart, the last" in browser.text("#workers")


def test_it_is_there_at_once_and_fits_a_phone_in_the_dark(browser: Browser, daemon: SidecarDaemon) -> None:
    browser.look_like(width=390, is_dark=True)
    browser.open(http_address(daemon))
    browser.wait_for("running", "#state")
    timing = browser.run("performance.getEntriesByType('resource').map((each) => each.duration)")
    navigation = browser.run("performance.getEntriesByType('navigation')[0].responseEnd")
    size = browser.run("performance.getEntriesByType('navigation')[0].decodedBodySize")
    print(f"page {navigation:.0f} ms and {size:,} bytes, state {timing[0]:.0f} ms")
    assert 0 < size <= PAGE_BYTES_MAX
    assert {urlsplit(each)[1:3] for each in browser.requests} == {
        (urlsplit(http_address(daemon)).netloc, path) for path in ("/", "/api/status")
    }, "the page, its state, and nothing of anybody else"
    assert navigation + timing[0] < 3000, "300 ms on a quiet machine"
    assert browser.run("document.documentElement.scrollWidth") <= 390
    assert browser.run("getComputedStyle(document.body).backgroundColor") == "rgb(16, 19, 25)"
    browser.look_like(width=1200)
    assert browser.run("getComputedStyle(document.body).backgroundColor") == "rgb(244, 245, 247)"


def test_names_of_clients_and_topics_are_text(browser: Browser, daemon: SidecarDaemon) -> None:
    with Producer(daemon.run_dir, client_name=EVIL[:60], on_error=lambda *_: None) as producer:
        producer.send("orders", b"x").result(30)
        producer.send(EVIL, b"x")
        producer.flush(30)
        browser.open(http_address(daemon))
        browser.wait_for(EVIL[:60], "#clients")
        browser.wait_for(EVIL, "#failures")
        assert browser.run("document.querySelectorAll('script').length") == 1
        assert browser.run("document.querySelectorAll('main img').length") == 0
        assert "owned" not in browser.run("document.title")
    assert not browser.complaints


def test_a_long_name_makes_no_page_wider_than_its_window(browser: Browser, daemon: SidecarDaemon) -> None:
    """The colours of the pool named topics in full: a name of 249 letters without a break made 2,500 pixels."""
    with Producer(daemon.run_dir, client_name="c" * 64, on_error=lambda *_: None) as producer:
        for width in (1200, 390):
            browser.look_like(width=width)
            browser.open(http_address(daemon))
            producer.send("m" * 249, b"x")
            browser.wait_for("m" * 39 + "…", "#pool")
            assert browser.run("document.documentElement.scrollWidth") <= width
            producer.flush(30)


def test_the_page_stays_and_says_that_the_daemon_is_gone(
    browser: Browser, kafka: FakeBroker, start_daemon: StartDaemon
) -> None:
    daemon = start_daemon(kafka.bootstrap_servers)
    browser.open(http_address(daemon))
    browser.wait_for("running", "#state")
    port = http_address(daemon).rsplit(":", 1)[1]
    daemon.stop()
    browser.wait_for("The daemon has not answered for", "#gone")
    assert "Everything runs." in browser.text("#state"), "what was there last"
    daemon.use(**{"http.listen": f"127.0.0.1:{port}"})
    daemon.start()
    notice = "getComputedStyle(document.getElementById('gone')).display"
    wait_until(lambda: browser.run(notice) == "none", "the notice's end")
    wait_until(lambda: browser.text("#workers").count("ready") == 2, "both workers")


def test_it_asks_for_the_token(
    browser: Browser, kafka: FakeBroker, start_daemon: StartDaemon, tmp_path: Path
) -> None:
    token = tmp_path / "token"
    token.write_text(secrets.token_hex())
    daemon = start_daemon(kafka.bootstrap_servers, settings={"http.token.file": token})
    browser.open(http_address(daemon))
    browser.wait_for("asks for its token")
    assert "running" not in browser.text()
    browser.run(f"document.querySelector('#token input').value = '{token.read_text()}'")
    browser.run("document.querySelector('#token button').click()")
    browser.wait_for("running", "#state")
