"""TokenKeeper: fetches tokens for the whole daemon before they expire, and distributes them.

The Cluster owns it, on the controller's loop; sources that block have a thread.
"""

from __future__ import annotations

import asyncio
import logging
import random as random_module
import threading
import time
from collections.abc import Callable, Mapping
from math import inf
from typing import Any, Final

from sidecar.common.backoff import ExponentialBackoff
from sidecar.common.control import LoginToken
from sidecar.common.wording import PLEASE_REPORT
from sidecar.config.rules import config_of
from sidecar.controller.cluster.token_endpoint import TokenError
from sidecar.controller.cluster.token_sources import FetchToken, token_source
from sidecar.controller.event_wait import happens_within
from sidecar.net.daemon_thread import NoThread, in_daemon_thread
from sidecar.protocol.sasl.credentials import OAuthToken, token_fingerprint
from sidecar.protocol.sasl.token_refresh import TokenRefreshConfig, refresh_at_ms

log = logging.getLogger(__name__)

HANGS_S: Final = 60.0
"""After this time without an answer a hanging source of tokens is logged; endpoints have shorter limits."""


class TokenKeeper:
    """One task in the controller's loop. Each fetch blocks a thread of its own, for which the daemon's end does not
    wait.

    ``on_token(message)`` is called after each try. A valid token stays in use while no new one is available.
    """

    def __init__(
        self,
        values: Mapping[str, Any],
        on_token: Callable[[LoginToken], None],
        *,
        fetch: FetchToken | None = None,
        random: Callable[[], float] = random_module.random,
    ) -> None:
        self.message = LoginToken()
        """The last message distributed; empty before the end of the first try."""
        self.settings = {
            name: value for name, value in values.items() if name.startswith(("sasl.", "https."))
        }
        self._fetch = fetch or token_source(values)
        self._on_token = on_token
        self._config = config = config_of(TokenRefreshConfig, values)
        self._random = random
        self._backoff = ExponentialBackoff(
            config.sasl_login_retry_backoff_ms, config.sasl_login_retry_backoff_max_ms, random
        )
        self._wanted = asyncio.Event()
        self._overdue = asyncio.Event()
        self._due_ms = inf
        """When the next token is due by the wall clock (Unix time in ms); inf if the last try failed."""
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        self._task = asyncio.get_running_loop().create_task(self._run())

    def refused(self, fingerprint: bytes) -> None:
        """Fetch another token, as a broker refuses this one although it is valid; at the earliest after
        sasl.login.retry.backoff.max.ms.

        The refusal of an earlier token is ignored: its holder will receive the newer one.
        """
        if self.message.token and token_fingerprint(self.message.token) == fingerprint:
            self._wanted.set()

    def tick(self, wall_ms: float) -> None:
        """Fetch the next token if it is due by the wall clock, by which tokens end. Timers run behind it when it has
        stepped, or the machine was suspended. Called once a second.
        """
        if wall_ms >= self._due_ms:
            self._overdue.set()
            self._wanted.set()

    def close(self) -> None:
        if self._task is not None:
            self._task.cancel()

    async def _run(self) -> None:
        failures = 0
        while True:
            try:
                token = await self._in_thread()
            except TokenError as error:
                self._failed(str(error))
                self._due_ms = inf
                delay_ms = self._backoff.backoff_ms(failures)
                failures += 1
            else:
                failures = 0
                self._got(token)
                now_ms = time.time() * 1000
                self._due_ms = refresh_at_ms(self._config, now_ms, token.expires_at_ms, self._random)
                delay_ms = max(self._config.sasl_login_retry_backoff_ms, self._due_ms - now_ms)
            least_ms = min(delay_ms, self._config.sasl_login_retry_backoff_max_ms)
            self._wanted.clear()
            self._overdue.clear()
            if not await happens_within(self._overdue, least_ms / 1000):
                await happens_within(self._wanted, min((delay_ms - least_ms) / 1000, threading.TIMEOUT_MAX))

    def _got(self, token: OAuthToken) -> None:
        if self.message.why_not:
            log.info("There are tokens again.")
        self._hand_on(message_of(token))

    def _failed(self, why: str) -> None:
        last = self.message
        lives_s = ((last.expires_at_ms or 0.0) - time.time() * 1000) / 1000 if last.token else 0.0
        if why != last.why_not:
            log.warning("%s%s", why, f" The last token lives {lives_s:.0f} s longer." if lives_s > 0 else "")
        self._hand_on(LoginToken(last.token, last.expires_at_ms, last.principal, last.extensions, why))

    def _hand_on(self, message: LoginToken) -> None:
        self.message = message
        try:
            self._on_token(message)
        except Exception:  # the next token must still be fetched
            log.exception(f"A token could not be passed on. {PLEASE_REPORT}")

    async def _in_thread(self) -> OAuthToken:
        # A daemon thread: an endpoint that hangs must not delay the daemon's end.
        fetching = asyncio.get_running_loop().create_task(in_daemon_thread(self._fetch, "token"))
        try:
            # A source that never returns is not asked by a second thread, but it is logged.
            while not (await asyncio.wait([fetching], timeout=HANGS_S))[0]:
                self._failed(
                    f"The source of tokens has not answered for {HANGS_S:g} s; it is still waited for."
                )
            return fetching.result()
        except NoThread as error:  # the next try follows
            raise TokenError(f"No token is fetched: {error}.") from None
        except (TokenError, asyncio.CancelledError):
            raise
        except Exception as error:
            raise TokenError(f"Fetching a token failed: {type(error).__name__}.") from None
        finally:
            fetching.cancel()


def message_of(token: OAuthToken) -> LoginToken:
    """The token as workers get it."""
    return LoginToken(token.value, token.expires_at_ms, token.principal, dict(token.extensions))
