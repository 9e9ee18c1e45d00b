"""Goal: the keeper of tokens goes on, whatever fails behind it."""

from __future__ import annotations

import asyncio
import time

from sidecar.common.control import LoginToken
from sidecar.controller.cluster.token_keeper import TokenKeeper
from sidecar.protocol.sasl.credentials import OAuthToken
from tests.net.links import until

from .test_tokens import values_of


def test_a_token_that_cannot_be_handed_on_is_not_the_last_one() -> None:
    """The task that fetches ended without a word. When its last token ended, brokers let nobody in."""
    handed: list[LoginToken] = []

    def hand_on(message: LoginToken) -> None:
        handed.append(message)
        if len(handed) == 1:
            raise RuntimeError("a bug")

    async def live() -> None:
        values = values_of("sasl.oauthbearer.token=x", "sasl.login.retry.backoff.ms=10")
        keeper = TokenKeeper(values, hand_on, fetch=lambda: OAuthToken("t", time.time() * 1000 + 300))
        keeper.start()
        await until(lambda: len(handed) >= 3)
        keeper.close()

    asyncio.run(live())
