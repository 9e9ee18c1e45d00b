"""Attach tickets: what the controller gives an admitted client, and its worker checks."""

from __future__ import annotations

import hashlib
import hmac


def attach_ticket(
    instance_key: bytes, client_id: bytes, name: str, worker_epoch: int, token_digest: bytes = b""
) -> bytes:
    """HMAC-SHA256 over client id, worker epoch (u64 little-endian) and name: nobody attaches without admission,
    under another name, or to a worker that has been replaced meanwhile.

    ``token_digest``: of the token that opened the name, so that a ticket ends with its token; empty: none was needed.
    """
    message = client_id + worker_epoch.to_bytes(8, "little") + token_digest + name.encode()
    return hmac.new(instance_key, message, hashlib.sha256).digest()
