"""A reader's sight of a daemon: its page in a real Chromium, and one screen of `top`."""

from __future__ import annotations

import contextlib
import threading
from types import TracebackType

from sidecar.tools.testing.browser import Browser, find_browser
from sidecar.tools.testing.daemon import SidecarDaemon
from sidecar.tools.testing.metrics import http_address


class PageReader:
    """One browser for all threads. Where there is no Chromium it reads no page."""

    def __init__(self) -> None:
        self._closing = contextlib.ExitStack()
        self._turn = threading.Lock()
        self._browser: Browser | None = None

    def __enter__(self) -> PageReader:
        path = find_browser()
        if path is not None:
            self._browser = self._closing.enter_context(Browser(path))
            self._browser.look_like(width=1200)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._closing.close()

    def text(self, daemon: SidecarDaemon) -> str | None:
        """The page's text once its state is there; None without a Chromium."""
        if self._browser is None:
            return None
        with self._turn:
            self._browser.open(http_address(daemon))
            self._browser.wait_for("Run dir", "#facts")
            return self._browser.text("main")


def top_text(daemon: SidecarDaemon) -> str:
    return daemon.command("top", "-n", "1", "--interval", "0.1").stdout
