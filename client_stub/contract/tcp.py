"""Addresses of the form ``tcp://host:port``, and what an end needs for one besides.

Pure functions: the stub's io thread, the loader of the configuration, and commands.
"""

from __future__ import annotations

from typing import Final

from client_stub.contract.wire import TCP_PREFIX

KEY_FILE_VARIABLE: Final = "KAFKA_SIDECAR_CURVE_KEY_FILE"
MISSING_TEXT: Final = "tcp:// needs PyNaCl, which is not installed: pip install 'kafka-sidecar[curve]'"


def split_address(address: str) -> tuple[str, int]:
    """Host and port of ``tcp://host:port``; the host may be empty, or a v6 address in brackets. Raises ValueError."""
    host, colon, port = address.removeprefix(TCP_PREFIX).rpartition(":")
    is_v6 = host.startswith("[") and host.endswith("]")
    is_port = port.isascii() and port.isdigit() and 0 < int(port) <= 0xFFFF
    if not address.startswith(TCP_PREFIX) or not colon or not is_port or (":" in host and not is_v6):
        raise ValueError(f"{address} is not tcp://host:port.")
    return (host[1:-1] if is_v6 else host), int(port)


def join_address(host: str, port: int) -> str:
    return f"{TCP_PREFIX}[{host}]:{port}" if ":" in host else f"{TCP_PREFIX}{host}:{port}"
