"""A manual clock and a Metadata without jitter."""

from __future__ import annotations

import pytest

from sidecar.metadata.metadata import Metadata, MetadataConfig
from tests.configs import config_with
from tests.manual_clock import ManualClock


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def metadata() -> Metadata:
    """Defaults, and a jitter that is always in the middle (none)."""
    return Metadata(config_with(MetadataConfig), lambda: 0.5)
