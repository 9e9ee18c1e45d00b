"""Packages that the daemon and the command line import beside the stub's; standard library only here."""

from __future__ import annotations

NEEDED_PACKAGES = (
    "click",
    "cramjam",
    "kio",
    "msgpack",
    "prometheus_client",
    "pydantic",
    "rich",
    "scramp",
    "setproctitle",
    "uvloop",
    "zmq",
)
"""Modules that `kafka-sidecar[daemon]` installs."""
