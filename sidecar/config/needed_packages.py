"""Packages that daemon and command line need besides the stub's. This file imports only the standard library."""

from __future__ import annotations

NEEDED_PACKAGES = (
    "click",
    "cramjam",
    "kio",
    "msgpack",
    "prometheus_client",
    "rich",
    "scramp",
    "setproctitle",
    "uvloop",
    "zmq",
)
"""Modules that `kafka-sidecar[daemon]` installs."""
