"""Decides when a token is renewed. Sans-IO (Kafka: ExpiringCredentialRefreshingLogin, KIP-255)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import inf
from typing import Final

REFRESH_MS_MIN: Final = 1_000.0
"""Minimum interval in ms between tokens, however short they live. Each token lets all links retry their logins. The
interval thus limits the cost of an endpoint with a wrong clock, or of tokens that live for milliseconds. librdkafka
also checks once a second.
"""


@dataclass(frozen=True, slots=True)
class TokenRefreshConfig:
    """Settings by Kafka's names with underscores (made by ``config_of``)."""

    sasl_login_refresh_window_factor: float
    sasl_login_refresh_window_jitter: float
    sasl_login_refresh_min_period_seconds: int
    sasl_login_refresh_buffer_seconds: int
    sasl_login_retry_backoff_ms: float
    sasl_login_retry_backoff_max_ms: float


def refresh_at_ms(
    config: TokenRefreshConfig, now_ms: float, expires_at_ms: float | None, random: Callable[[], float]
) -> float:
    """When to fetch the next token, for one obtained now, by the clock of ``now_ms``; ``inf`` if it does not end.

    It is fetched after a part of its life, plus jitter. The buffer before its end and the minimum period count only
    for a token that lives longer than both together; of the two, the period takes precedence. REFRESH_MS_MIN always
    counts.
    """
    if expires_at_ms is None:
        return inf
    life_ms = max(0.0, expires_at_ms - now_ms)
    part = config.sasl_login_refresh_window_factor + config.sasl_login_refresh_window_jitter * random()
    due_ms = now_ms + max(REFRESH_MS_MIN, life_ms * min(part, 1.0))
    period_ms = config.sasl_login_refresh_min_period_seconds * 1000.0
    buffer_ms = config.sasl_login_refresh_buffer_seconds * 1000.0
    if period_ms + buffer_ms > life_ms:
        return due_ms
    return max(min(due_ms, expires_at_ms - buffer_ms), now_ms + period_ms)
