"""Every test of links runs on both event loops: uvloop as in the daemon, asyncio as everywhere else."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest
import uvloop

from sidecar.tools.testing.certificates import CertificateAuthority
from tests.configs import security
from tests.patience import TEST_S

from .fake_broker import FakeBroker
from .links import NotingLinks
from .tls_harness import TlsHarness

Run = Callable[[Callable[[], Awaitable[None]]], None]


@pytest.fixture(params=["uvloop", "asyncio"])
def run(request: pytest.FixtureRequest) -> Run:
    """Run a coroutine function to its end, in bounded time; an exception of its callbacks fails the test."""

    def run(test: Callable[[], Awaitable[None]]) -> None:
        failures: list[dict[str, object]] = []

        async def bounded() -> None:
            asyncio.get_running_loop().set_exception_handler(lambda _, context: failures.append(context))
            await asyncio.wait_for(test(), TEST_S)

        factory = uvloop.new_event_loop if request.param == "uvloop" else asyncio.new_event_loop
        with asyncio.Runner(loop_factory=factory) as runner:
            runner.run(bounded())
        assert not failures, failures

    return run


@pytest.fixture(scope="session")
def tls_harness(tmp_path_factory: pytest.TempPathFactory) -> TlsHarness:
    """A CA, and contexts of brokers that it vouches for."""
    return TlsHarness(CertificateAuthority(), tmp_path_factory.mktemp("tls"))


@pytest.fixture(params=["plaintext", "TLSv1.2", "TLSv1.3"])
def spoken(request: pytest.FixtureRequest, tls_harness: TlsHarness, monkeypatch: pytest.MonkeyPatch) -> str:
    """Fake brokers and links speak this, unless a test says otherwise."""
    if request.param != "plaintext":
        monkeypatch.setattr(FakeBroker, "usual_tls", tls_harness.server())
        monkeypatch.setattr(
            NotingLinks, "usual", security(**tls_harness.settings, ssl_enabled_protocols=[request.param])
        )
    return str(request.param)
