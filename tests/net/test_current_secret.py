"""Goal: the file of a secret on a mount that is away stops neither the loop nor a login nor a request."""

from __future__ import annotations

import asyncio
import gc
import os
import threading
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from sidecar.controller.front.http_port import _TokenFile
from sidecar.net.kafka.authentication import Authenticator
from sidecar.protocol.messages import ApiKey
from sidecar.protocol.sasl.credentials import PasswordCredentials
from tests.configs import DEFAULTS
from tests.patience import PATIENCE_S

from .conftest import Run
from .fake_broker import FakeBroker
from .links import NotingLinks, node_of, until


class Mount:
    """The directory of one file. ``is_back`` clear: open() of that file does not return."""

    def __init__(self, path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.path = path
        self.is_back = threading.Event()
        real = os.open

        def away(place: Any, *flags: Any, **more: Any) -> int:
            if place == str(path):
                assert self.is_back.wait(PATIENCE_S)
            return real(place, *flags, **more)

        monkeypatch.setattr("sidecar.config.secret_sources.os.open", away)

    @property
    def threads(self) -> int:
        """How many wait for it."""
        return sum(each.name == "secret" for each in threading.enumerate())


@pytest.fixture
def mount(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Mount]:
    path = tmp_path / "secret"
    path.write_text("old\n")
    mount = Mount(path, monkeypatch)
    yield mount
    mount.is_back.set()  # a thread that still waits would count in the next test


def login_password(path: Path) -> Callable[[], Awaitable[str]]:
    """The password of a login."""
    values = {"sasl.mechanism": "PLAIN", "sasl.username": "alice", "sasl.password.file": str(path)}
    authenticator = Authenticator(DEFAULTS | values)

    async def use() -> str:
        credentials = await authenticator.credentials()
        assert isinstance(credentials, PasswordCredentials)
        return credentials.password

    return use


def request_token(path: Path) -> Callable[[], Awaitable[str]]:
    """The token that a request must bear."""
    token = _TokenFile(DEFAULTS | {"http.token.file": str(path)})

    async def use() -> str:
        return "new" if await token.allows(b"new") else "old" if await token.allows(b"old") else ""

    return use


@pytest.mark.parametrize("user", [login_password, request_token])
def test_a_mount_that_is_away_leaves_the_last_secret_in_use(
    run: Run,
    mount: Mount,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    user: Callable[[Path], Callable[[], Awaitable[str]]],
) -> None:
    mount.is_back.set()

    async def test() -> None:
        use = user(mount.path)
        assert await use() == "old"
        monkeypatch.setattr("sidecar.net.current_secret.READ_S", 0.05)
        mount.is_back.clear()
        assert [await use() for _ in range(3)] == ["old"] * 3
        await until(lambda: mount.threads == 1)  # the thread of the first reading may still be ending
        assert len(caplog.messages) == 1 and str(mount.path) in caplog.messages[0]
        new = mount.path.with_name("new")
        new.write_text("new\n")
        new.replace(mount.path)
        mount.is_back.set()
        async with asyncio.timeout(PATIENCE_S):
            while await use() != "new":  # noqa: ASYNC110 - each use reads again
                await asyncio.sleep(0.01)

    run(test)


def test_a_first_login_waits_as_long_as_its_connection_may(run: Run, mount: Mount) -> None:
    """Then the sentence names the file. Its late failure is nobody's any more, and no unhandled error."""
    values = {"sasl.mechanism": "PLAIN", "sasl.username": "alice", "sasl.password.file": str(mount.path)}

    async def test() -> None:
        async with FakeBroker() as broker:
            noting = NotingLinks(
                authenticator=Authenticator(DEFAULTS | values), socket_connection_setup_timeout_ms=100.0
            )
            node = node_of(broker.port)
            noting.links.ready(node)
            await until(lambda: len(noting.states) == 1)
            ((_, connected, error),) = noting.states
            assert not connected and error is not None
            assert error.startswith(f"{node}: no password of sasl.password.file came within ")
            mount.path.unlink()
            mount.is_back.set()
            await until(lambda: not mount.threads)
            noting.links.close_all()
            gc.collect()
            await asyncio.sleep(0)

    run(test)


def test_a_login_keeps_its_mechanism_while_the_settings_change(run: Run, mount: Mount) -> None:
    """The password of a SCRAM login went to the broker in plain text."""
    path = str(mount.path)
    values = {"sasl.mechanism": "SCRAM-SHA-256", "sasl.username": "alice", "sasl.password.file": path}
    asked: list[Any] = []

    async def exchange(request: Any) -> Any:
        asked.append(request.mechanism)
        raise ConnectionError

    async def test() -> None:
        authenticator = Authenticator(DEFAULTS | values)
        versions: dict[int, int] = {ApiKey.SASL_HANDSHAKE: 1, ApiKey.SASL_AUTHENTICATE: 1}
        login = asyncio.ensure_future(authenticator.log_in(exchange, versions))
        await until(lambda: mount.threads == 1)
        authenticator.change(DEFAULTS | values | {"sasl.mechanism": "PLAIN"})
        mount.is_back.set()
        with pytest.raises(ConnectionError):
            await login
        assert asked == ["SCRAM-SHA-256"]

    run(test)
