"""MalformedFrame: a frame that no stub of ours sends. Its sender's fault, and never ours."""

from __future__ import annotations


class MalformedFrame(ValueError):
    """Raised before anything was changed. It is counted, and answered with REFUSED."""
