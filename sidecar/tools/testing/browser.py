"""A real headless Chromium, driven over its pipe (Chrome DevTools Protocol), for tests of pages as a user sees them.

Source: https://chromedevtools.github.io/devtools-protocol/; ``--remote-debugging-pipe`` reads file descriptor 3 and
writes 4, one JSON message and a zero byte each.
"""

from __future__ import annotations

import base64
import contextlib
import json
import os
import select
import shutil
import signal
import subprocess
import tempfile
import time
from pathlib import Path
from types import TracebackType
from typing import Any, Final

from sidecar.tools.testing.child_processes import die_with_parent
from sidecar.tools.testing.waiting import wait_until

NAMES: Final = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")
ANSWER_S: Final = 30.0


def find_browser() -> str | None:
    """The path of a Chromium on this host; $CHROMIUM names another one."""
    named = os.environ.get("CHROMIUM")
    return named or next((path for name in NAMES if (path := shutil.which(name))), None)


class BrowserError(RuntimeError):
    """The browser ended, refused a command, or a script in the page raised."""


class Browser:
    """One page of a separate browser. Use it as a context manager from one thread."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._serial = 0
        self._unread = b""
        self._events: list[dict[str, Any]] = []
        self.requests: list[str] = []
        """Addresses that the page has requested."""
        self.complaints: list[str] = []
        """Errors in its console: exceptions, and violations of the page's policy."""

    def __enter__(self) -> Browser:
        self._home = Path(tempfile.mkdtemp(prefix="ks-browser-"))
        to_browser, self._to_browser = os.pipe()
        self._from_browser, from_browser = os.pipe()

        def as_three_and_four() -> None:
            die_with_parent()
            three, four = os.dup(to_browser), os.dup(from_browser)  # not 3 or 4 themselves
            os.dup2(three, 3)
            os.dup2(four, 4)

        self._process = subprocess.Popen(
            [
                self._path,
                "--headless=new",
                "--no-sandbox",  # not available to root
                "--disable-gpu",
                "--disable-dev-shm-usage",
                "--no-first-run",
                "--disable-background-networking",
                "--hide-scrollbars",
                "--remote-debugging-pipe",
                f"--user-data-dir={self._home}",
                "about:blank",
            ],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            env={**os.environ, "TMPDIR": str(self._home)},  # one that is killed leaves its own folders there
            preexec_fn=as_three_and_four,  # noqa: PLW1509
            close_fds=False,
            start_new_session=True,
        )
        os.close(to_browser)
        os.close(from_browser)
        self._session = ""
        target = self._ask("Target.createTarget", url="about:blank")["targetId"]
        self._session = self._ask("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Network", "Log"):
            self._ask(f"{domain}.enable")
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        # Its renderers outlive it for a moment, and would write into the folder that is removed here.
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        wait_until(self._has_no_process, "the browser's last process to end")
        os.close(self._to_browser)
        os.close(self._from_browser)
        shutil.rmtree(self._home, ignore_errors=True)

    def _has_no_process(self) -> bool:
        try:
            os.killpg(self._process.pid, 0)
        except ProcessLookupError:
            return True
        return False

    def look_like(self, *, width: int, height: int = 900, is_dark: bool = False, scale: float = 1.0) -> None:
        """Set the size of the window, and the colour scheme that the user prefers."""
        self._ask(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=height,
            deviceScaleFactor=scale,
            mobile=width < 600,
        )
        scheme = {"name": "prefers-color-scheme", "value": "dark" if is_dark else "light"}
        self._ask("Emulation.setEmulatedMedia", features=[scheme])

    def open(self, address: str) -> None:
        """Open an address. Returns once the page is loaded."""
        self._events.clear()
        answer = self._ask("Page.navigate", url=address)
        if answer.get("errorText"):
            raise BrowserError(f"{address}: {answer['errorText']}")
        deadline_s = time.monotonic() + ANSWER_S
        while not any(event["method"] == "Page.loadEventFired" for event in self._events):
            self._read(deadline_s)

    def run(self, script: str) -> Any:
        """The value of an expression in the page."""
        answer = self._ask(
            "Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True, userGesture=True
        )
        if "exceptionDetails" in answer:
            raise BrowserError(json.dumps(answer["exceptionDetails"])[:1000])
        return answer["result"].get("value")

    def text(self, selector: str = "body") -> str:
        """The visible text of the first element of this kind."""
        found: str = self.run(f"document.querySelector({json.dumps(selector)}).innerText")
        return found

    def wait_for(self, words: str, selector: str = "body", timeout_s: float = 30.0) -> None:
        """Wait until the text is visible there."""
        wait_until(lambda: words in self.text(selector), f"{words!r} on the page", timeout_s=timeout_s)

    def screenshot(self, path: Path) -> None:
        """The whole page as a PNG."""
        size = self._ask("Page.getLayoutMetrics")["cssContentSize"]
        clip = {"x": 0, "y": 0, "width": size["width"], "height": size["height"], "scale": 1}
        shot = self._ask("Page.captureScreenshot", format="png", clip=clip, captureBeyondViewport=True)
        path.write_bytes(base64.b64decode(shot["data"]))

    def _ask(self, method: str, **parameters: Any) -> Any:
        self._serial += 1
        message: dict[str, Any] = {"id": self._serial, "method": method, "params": parameters}
        if self._session:
            message["sessionId"] = self._session
        with contextlib.suppress(BrokenPipeError):  # the end of the browser is noticed below
            os.write(self._to_browser, json.dumps(message).encode() + b"\0")
        deadline_s = time.monotonic() + ANSWER_S
        while True:
            answer = self._read(deadline_s)
            if answer.get("id") == self._serial:
                if "error" in answer:
                    raise BrowserError(f"{method}: {answer['error']['message']}")
                return answer["result"]

    def _read(self, deadline_s: float) -> dict[str, Any]:
        """The next message; events are stored."""
        while b"\0" not in self._unread:
            left_s = deadline_s - time.monotonic()
            if left_s <= 0 or not select.select([self._from_browser], [], [], left_s)[0]:
                raise BrowserError("the browser does not answer")
            more = os.read(self._from_browser, 1 << 20)
            if not more:
                raise BrowserError("the browser has ended")
            self._unread += more
        line, _, self._unread = self._unread.partition(b"\0")
        message: dict[str, Any] = json.loads(line)
        if "method" in message:
            self._note(message)
        return message

    def _note(self, event: dict[str, Any]) -> None:
        self._events.append(event)
        parameters = event.get("params", {})
        if event["method"] == "Network.requestWillBeSent":
            self.requests.append(parameters["request"]["url"])
        elif event["method"] == "Runtime.exceptionThrown":
            self.complaints.append(json.dumps(parameters["exceptionDetails"])[:1000])
        elif event["method"] == "Log.entryAdded" and parameters["entry"]["level"] == "error":
            self.complaints.append(parameters["entry"]["text"])
