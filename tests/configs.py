"""The rooms' configuration objects as the product makes them: from SETTINGS' defaults, with changes by field."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any, TypeVar

from sidecar.common.clock import MonotonicClock
from sidecar.config.rules import conclude, config_of
from sidecar.config.settings import SETTINGS, SidecarConfig
from sidecar.net.kafka.link_security import LinkSecurity
from sidecar.producer.config import ProducerConfig

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

    Config = TypeVar("Config", bound=DataclassInstance)

SERVERS = {"bootstrap.servers": ["localhost:9092"]}
DEFAULTS = conclude(SidecarConfig({row.name: row.default for row in SETTINGS} | SERVERS)).values


def config_with(kind: type[Config], **changes: Any) -> Config:
    """A configuration object with the defaults that users get, and these changes."""
    return replace(config_of(kind, DEFAULTS), **changes)


def producer_config(**changes: Any) -> ProducerConfig:
    """Of the core. Unless a test asks for them, batches do not grow and a broker has one connection."""
    return config_with(ProducerConfig, **{"batch_growth_bytes": 0, "connections_per_broker": 1, **changes})


def security(**changes: object) -> LinkSecurity:
    """How links talk: in plaintext, unless the settings (dots as underscores) say otherwise."""
    named = {name.replace("_", "."): value for name, value in changes.items()}
    return LinkSecurity(DEFAULTS | named, MonotonicClock())
