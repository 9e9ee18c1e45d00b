"""SCRAM (RFC 5802, RFC 7677): proves the password without sending it, and the broker proves that it knows it too.

Sans-IO: a login makes one for each exchange, on the loop of its link.

scramp implements the conversation, with two changes. Brokers hash a password's UTF-8 bytes (Kafka:
ScramFormatter.normalize), while scramp would apply SASLprep, which breaks a password with U+00A0. And the number of
iterations is limited, so that a broker, or an impostor, cannot make the client compute for minutes.
"""

from __future__ import annotations

from typing import Final

from scramp import ScramClient, ScramException

from sidecar.protocol.sasl.credentials import LoginFailed, PasswordCredentials, clean

SCRAM_ITERATIONS_MAX: Final = 100_000
"""Limit of iterations. Kafka's own limit is 16,384. This many take 60 ms of SHA-512; more would block the loop."""
SCRAM_MESSAGE_BYTES_MAX: Final = 4_096


class _AsItIs:
    """User name or password with the interface of scramp's classes, but not normalised."""

    def __init__(self, text: str) -> None:
        self._text = text

    def __bytes__(self) -> bytes:
        return self._text.encode()

    def __str__(self) -> str:
        return self._text

    def escape(self) -> str:
        return self._text.replace("=", "=3D").replace(",", "=2C")


class Scram:
    """One login by SCRAM-SHA-256 or SCRAM-SHA-512."""

    def __init__(self, mechanism: str, credentials: PasswordCredentials, nonce: str | None = None) -> None:
        """``nonce``: the client's nonce, for tests with the RFC's vectors; None for a random one."""
        self._client = ScramClient([mechanism], "user", "password", c_nonce=nonce)
        self._client.username = _AsItIs(credentials.username)
        self._client.password = _AsItIs(credentials.password)
        self._is_proved = False

    def first(self) -> bytes:
        message: str = self._client.get_client_first()
        return message.encode()

    def answer(self, challenge: bytes) -> bytes | None:
        if len(challenge) > SCRAM_MESSAGE_BYTES_MAX:
            raise LoginFailed(f"the broker's SCRAM message has {len(challenge)} bytes")
        try:
            text = challenge.decode()
            if not self._is_proved:
                return self._prove(text)
            self._client.set_server_final(text)
        except (ScramException, ValueError) as error:
            raise LoginFailed(f"the broker's SCRAM message is refused: {clean(str(error))}") from None
        return None

    def _prove(self, server_first: str) -> bytes:
        self._client.set_server_first(server_first)
        iterations = int(self._client.iterations)
        if iterations > SCRAM_ITERATIONS_MAX:
            raise LoginFailed(
                f"the broker asks for {iterations:,} iterations, and over {SCRAM_ITERATIONS_MAX:,} are refused"
            )
        message: str = self._client.get_client_final()
        self._is_proved = True
        return message.encode()
