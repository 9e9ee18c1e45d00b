"""Attach tickets: what the controller gives an admitted client, and its worker checks."""

from __future__ import annotations

import hashlib
import hmac


def attach_ticket(instance_key: bytes, client_id: bytes, name: str, worker_epoch: int) -> bytes:
    """HMAC-SHA256 over client id, worker epoch (u64 little-endian) and name: nobody attaches without admission,
    under another name, or to a worker that has been replaced meanwhile."""
    message = client_id + worker_epoch.to_bytes(8, "little") + name.encode()
    return hmac.new(instance_key, message, hashlib.sha256).digest()
