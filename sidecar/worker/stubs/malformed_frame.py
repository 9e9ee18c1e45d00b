"""MalformedFrame: a frame that no valid stub sends. The fault is its sender's."""

from __future__ import annotations


class MalformedFrame(ValueError):
    """Raised before any state is changed. The frame is counted, and answered with REFUSED."""
