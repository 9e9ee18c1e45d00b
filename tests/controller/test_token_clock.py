"""Goal: tokens end by the wall clock, so a step of it, or a suspended machine, makes the next one due."""

from __future__ import annotations

import asyncio
import time

from sidecar.common.control import LoginToken
from sidecar.config.loader import load_config
from sidecar.controller.cluster.token_keeper import TokenKeeper
from sidecar.protocol.sasl.credentials import OAuthToken
from tests.net.links import until


def test_a_token_that_is_due_by_a_stepped_wall_clock_is_fetched() -> None:
    """The timer ran on for most of an hour after a suspended machine went on, and each login found an expired token."""
    fetched: list[str] = []
    handed: list[LoginToken] = []

    def fetch() -> OAuthToken:
        fetched.append(f"t{len(fetched)}")
        return OAuthToken(fetched[-1], time.time() * 1000 + 3_600_000)

    async def live() -> None:
        words = ["security.protocol=SASL_PLAINTEXT", "sasl.mechanism=OAUTHBEARER", "sasl.oauthbearer.token=x"]
        words += ["bootstrap.servers=localhost:9092", "sasl.login.retry.backoff.max.ms=60000"]
        keeper = TokenKeeper(load_config(None, words, {}).values, handed.append, fetch=fetch)
        keeper.start()
        await until(lambda: len(handed) == 1)
        keeper.tick(time.time() * 1000)
        assert not keeper._wanted.is_set()
        keeper.tick(time.time() * 1000 + 3_600_000)
        await until(lambda: [each.token for each in handed] == ["t0", "t1"])
        keeper.close()

    asyncio.run(live())
