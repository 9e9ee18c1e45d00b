"""Pictures of the page for docs/images: a real daemon that is healthy, has lost a broker, and has a full pool.

``python -m tests.process.page_pictures`` makes them again, in some three minutes; it needs Chromium and Pillow.
"""

from __future__ import annotations

import contextlib
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

from client_stub import Producer
from client_stub.errors import SidecarError
from sidecar.tools.testing.browser import Browser, find_browser
from sidecar.tools.testing.daemon import SidecarDaemon
from sidecar.tools.testing.fake_broker import FakeBroker
from sidecar.tools.testing.fault_rules import on
from sidecar.tools.testing.kafka_frames import Api
from sidecar.tools.testing.metrics import http_address
from sidecar.tools.testing.waiting import wait_until

IMAGES = Path(__file__).resolve().parents[2] / "docs" / "images"
HEALTHY_S, TROUBLE_S = 90.0, 25.0
CLIENTS = (("billing", "orders", 900, 0.05), ("web-1", "clicks", 200, 0.02), ("web-2", "clicks", 200, 0.03))
COLOURS = 128


@contextlib.contextmanager
def sending(daemon: SidecarDaemon, name: str, topic: str, size: int, pause_s: float) -> Iterator[None]:
    """A client that sends until the end of the block; it may be held."""
    stop = threading.Event()

    def send() -> None:
        with Producer(daemon.run_dir, client_name=name, on_error=lambda *_: None) as producer:
            while not stop.is_set():
                with contextlib.suppress(SidecarError):
                    for _ in range(20):
                        producer.send(topic, bytes(size))
                stop.wait(pause_s)
            producer.close(1)

    thread = threading.Thread(target=send, daemon=True)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join(30)


def shoot(browser: Browser, name: str) -> None:
    from PIL import Image

    path = IMAGES / f"page-{name}.png"
    browser.screenshot(path)
    with Image.open(path) as picture:
        picture.convert("RGB").quantize(COLOURS).save(path, optimize=True)
    print(f"{path} {path.stat().st_size >> 10} KiB", flush=True)


def main() -> None:
    chromium = find_browser()
    if chromium is None:
        sys.exit("no Chromium here: install it (Debian: apt-get install chromium)")
    settings = {"buffer.memory": 16 << 20, "max.block.ms": 5000}
    with (
        FakeBroker({"orders": 6, "clicks": 6, "bulk": 2}, nodes=2) as kafka,
        SidecarDaemon(kafka.bootstrap_servers, settings=settings) as daemon,
        contextlib.ExitStack() as clients,
        Browser(chromium) as browser,
    ):
        for each in CLIENTS:
            clients.enter_context(sending(daemon, *each))
        browser.look_like(width=1100)
        browser.open(http_address(daemon))
        time.sleep(HEALTHY_S)
        browser.wait_for("running", "#state")
        shoot(browser, "healthy")
        browser.look_like(width=390, is_dark=True)
        shoot(browser, "phone")
        browser.look_like(width=1100)

        kafka.stop_listening(2)
        kafka.disconnect(2)
        browser.wait_for("degraded", "#state")
        time.sleep(TROUBLE_S)
        shoot(browser, "broker-down")
        kafka.listen_again(2)
        browser.wait_for("running", "#state")

        rule = kafka.add(on(Api.PRODUCE, topic="bulk").hold())
        with sending(daemon, "importer", "bulk", 20_000, 0.0):
            wait_until(lambda: daemon.info()["holds"], "a client that is held")
            time.sleep(TROUBLE_S)
            shoot(browser, "full-pool")
            rule.remove()
            rule.release()


if __name__ == "__main__":
    main()
