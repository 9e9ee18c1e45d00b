"""Logins at brokers: the source of credentials, the exchange on a new connection, and its renewal.

One Authenticator serves all links of a process. Without SASL there is none, and this module is not imported.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from math import inf
from typing import Any, Final, NamedTuple, Protocol

from sidecar.common.control import LoginToken
from sidecar.common.model import Node
from sidecar.config.sasl_settings import OAUTHBEARER
from sidecar.config.secret_sources import SecretError
from sidecar.net.current_secret import CurrentSecret
from sidecar.protocol.connection import InFlightRequest
from sidecar.protocol.messages import ProtocolError, RequestMessage
from sidecar.protocol.sasl.authentication import Authentication
from sidecar.protocol.sasl.credentials import (
    Credentials,
    CredentialsMissing,
    LoginFailed,
    OAuthToken,
    PasswordCredentials,
    token_fingerprint,
)
from sidecar.protocol.sasl.session import SaslSession

log = logging.getLogger(__name__)

OUTLIVES_MS: Final = 1_000.0
"""Credentials renew a session only if they live longer than it by this many ms, as the two clocks may differ
slightly.
"""

Exchange = Callable[[RequestMessage], Awaitable[Any]]
"""Sends a request and returns the response entity."""


class Authenticator:
    """The newest credentials of one process. Belongs to the loop's thread."""

    def __init__(self, values: Mapping[str, Any]) -> None:
        """``values``: all settings by name."""
        self._values = values
        self.mechanism = str(values["sasl.mechanism"])
        self._token: OAuthToken | None = None
        self._why_no_token = ""
        self._password = CurrentSecret(values, "sasl.password")
        self._changed = asyncio.Event()
        self._listeners: list[Callable[[], None]] = []
        self.on_token_refused: Callable[[bytes], None] = lambda fingerprint: None
        """Called with the token's fingerprint after each login in which a broker refused a token. Set by the process's
        owner.
        """

    def on_change(self, listener: Callable[[], None]) -> None:
        """Call ``listener`` whenever there are new credentials."""
        self._listeners.append(listener)

    def put_token(self, message: LoginToken) -> None:
        """Take the newest token, which may be unchanged, and the reason why there is no newer one."""
        self._why_no_token = message.why_not
        if message.token:
            self._token = OAuthToken(
                message.token, message.expires_at_ms, message.principal, message.extensions
            )
        self._notify()

    @property
    def why_no_token(self) -> str:
        """Why the controller could not get a token at its last try; "" while it gets tokens."""
        return self._why_no_token

    def change(self, values: Mapping[str, Any]) -> None:
        """Use changed settings from the next login on."""
        self._values = values
        self.mechanism = str(values["sasl.mechanism"])
        self._password = CurrentSecret(values, "sasl.password")
        self._notify()

    def _notify(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()
        for listener in self._listeners:
            listener()

    @property
    def missing(self) -> str:
        """Phrase that says what :meth:`ready` waits for."""
        return "no OAuth token" if self.mechanism == OAUTHBEARER else "no password of sasl.password.file"

    async def credentials(self) -> Credentials:
        """Credentials for a login that begins now. Raises CredentialsMissing."""
        if self.mechanism == OAUTHBEARER:
            token = self._token
            if token is None or _lives_ms(token) <= 0:
                what = "there is no token" if token is None else "the token has expired"
                raise CredentialsMissing(f"{what}{f': {self._why_no_token}' if self._why_no_token else ''}")
            return token
        username = str(self._values["sasl.username"])
        try:
            return PasswordCredentials(username, await self._password.get())
        except SecretError as error:
            raise CredentialsMissing(str(error)) from None

    def lives_longer_than(self, session_left_ms: float) -> bool:
        """Whether a login now gives a session that lasts beyond the present one, which ends in ``session_left_ms``."""
        if self.mechanism != OAUTHBEARER:
            return True
        return self._token is not None and _lives_ms(self._token) > session_left_ms + OUTLIVES_MS

    async def ready(self) -> None:
        """Wait until there are credentials. Raises CredentialsMissing at once if the reason is known."""
        while True:
            changed = self._changed
            try:
                await self.credentials()
                return
            except CredentialsMissing:
                if self.mechanism != OAUTHBEARER or self._why_no_token:
                    raise
            await changed.wait()

    async def log_in(self, exchange: Exchange, versions: Mapping[int, int]) -> float:
        """Log in. Returns for how many ms the broker accepts requests under this login; 0 without a limit.

        Raises LoginFailed, CredentialsMissing, and any exception of ``exchange``.
        """
        mechanism = self.mechanism  # new settings may come while a file is read
        credentials = await self.credentials()
        authentication = Authentication(mechanism, credentials, versions)
        while (request := authentication.next_request()) is not None:
            try:
                response = await exchange(request)
            except ProtocolError as error:
                raise authentication.unreadable(error) from None
            try:
                authentication.receive(response)
            except LoginFailed:
                if isinstance(credentials, OAuthToken) and authentication.has_presented:
                    self.on_token_refused(token_fingerprint(credentials.value))
                raise
        return authentication.session_lifetime_ms


def _lives_ms(token: OAuthToken) -> float:
    return inf if token.expires_at_ms is None else token.expires_at_ms - time.time() * 1000


class RenewingLink(Protocol):
    """The part of a link that a renewal uses."""

    node: Node
    is_closed: bool
    last_used_ms: float

    @property
    def awaited_count(self) -> int:
        """Requests sent and not answered."""
        ...

    def request(self, message: RequestMessage, *, may_wait: bool) -> Awaitable[Any]:
        """Send a request; at once although others are held if it may not wait."""
        ...

    def send_held(self, held: Held) -> None:
        """Send a held request after all that were sent before."""
        ...

    def close(self, reason: str) -> None:
        """Close the link."""
        ...

    def refuse(self, reason: str) -> None:
        """Close the link: the login was refused."""
        ...


class Held(NamedTuple):
    """A request that waits for a renewal: the answer it expects (None for acks=0), and its bytes."""

    expected: InFlightRequest | None
    outgoing: Any

    @property
    def deadline_ms(self) -> float:
        """When its answer is overdue, monotonic ms; infinity if its owner watches the time."""
        deadline_ms = None if self.expected is None else self.expected.deadline_ms
        return inf if deadline_ms is None else deadline_ms


class SessionRenewal:
    """Renews the login of one link before its session ends, and holds requests meanwhile.

    The held requests have the usual bounds: max.in.flight requests per connection, and the request buffers.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        link: RenewingLink,
        authenticator: Authenticator,
        versions: Mapping[int, int],
        session: SaslSession,
        now_ms: Callable[[], float],
        on_deadline: Callable[[float], None],
    ) -> None:
        self.held: deque[Held] = deque()
        self._held_since_ms = 0.0
        self.is_holding = False
        self._loop = loop
        self._link = link
        self._authenticator = authenticator
        self._versions = versions
        self._session = session
        self._now_ms = now_ms
        self._on_deadline = on_deadline
        self._task: asyncio.Task[None] | None = None
        on_deadline(session.due_at_ms)

    def hold(self, expected: InFlightRequest | None, outgoing: Any) -> None:
        """Hold a request until the login is renewed. ``expected`` None: no answer follows (acks=0)."""
        if not self.held:
            self._held_since_ms = self._now_ms()
        self.held.append(Held(expected, outgoing))

    @property
    def held_since_ms(self) -> float | None:
        """Since when requests are held, monotonic ms; None if there is none. They have request buffers, for which
        other brokers may wait.
        """
        return self._held_since_ms if self.held else None

    def next_due_ms(self, now_ms: float) -> float:
        """When :meth:`tick` should run without an event, monotonic ms; infinity if an event will follow."""
        held_ms = min((each.deadline_ms for each in self.held), default=inf)
        return min(held_ms, self._session.next_due_ms(now_ms))

    def tick(self, now_ms: float) -> None:
        """Begin a renewal that is due, and close the link if it takes longer than a held request may wait. Call after
        time has passed, an answer has come, or credentials have changed.
        """
        session = self._session
        if any(each.deadline_ms <= now_ms for each in self.held):
            self._link.close(
                f"{self._link.node}: the login was not renewed within the timeout of a request that waited for it."
            )
            return
        if session.is_over(now_ms):
            self._link.refuse(
                f"{self._link.node}: the session has ended, and there is no newer token: "
                f"{self._authenticator.why_no_token or 'none was fetched'}"
            )
            return
        left_ms = session.ends_at_ms - now_ms
        is_renewable = now_ms < session.due_at_ms or self._authenticator.lives_longer_than(left_ms)
        begins = session.poll(now_ms, self._link.awaited_count, is_renewable=is_renewable)
        self.is_holding = session.is_holding
        if begins:
            self._task = self._loop.create_task(self._renew())

    def close(self) -> None:
        """Cancel the renewal because the link ends. The link gives held requests back."""
        if self._task is not None:
            self._task.cancel()

    async def _renew(self) -> None:
        link, used_ms = self._link, self._link.last_used_ms
        try:
            exchange = partial(link.request, may_wait=False)
            lifetime_ms = await self._authenticator.log_in(exchange, self._versions)
        except (LoginFailed, CredentialsMissing) as error:
            self._task = None
            link.refuse(f"{link.node}: {str(error).rstrip('.')}.")
            return
        except ConnectionError:  # the link was closed meanwhile, and reports why
            return
        except Exception as error:  # held requests must not wait for ever
            self._task = None
            log.exception("Renewing the login at %s failed.", link.node)
            link.refuse(f"{link.node}: renewing the login failed ({type(error).__name__}).")
            return
        self._task = None
        if link.is_closed:
            return
        link.last_used_ms = used_ms  # a login does not count as use: an idle link is still closed
        self._session.renewed(lifetime_ms, self._now_ms())
        self._on_deadline(self._session.due_at_ms)
        # The owner may send more after the first one: that is sent after the held requests.
        while self.held and not link.is_closed:
            link.send_held(self.held.popleft())
        self.is_holding = False
