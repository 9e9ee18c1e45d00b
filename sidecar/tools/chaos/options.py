"""ChaosOptions: the options of the command line."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True)
class ChaosOptions:
    """The options of a run. It ends when all requested numbers are reached."""

    bootstrap_servers: str | None = None
    topic: str | None = None
    partitions: int = 6
    seed: int | None = None
    kills: int | None = None
    duration_s: float | None = None
    records: int = 0
    clients: int = 4
    rate: float = 20_000.0
    value_bytes: int = 64
    settings: Mapping[str, str] = field(default_factory=dict)
    transactions: bool = False
    json: bool = False
