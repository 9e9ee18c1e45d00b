"""Attach tickets: issued by the controller to an admitted client, and checked by its worker.

Pure functions: the controller signs on its loop, and a worker checks on its own.
"""

from __future__ import annotations

import hashlib
import hmac


def attach_ticket(
    instance_key: bytes, client_id: bytes, name: str, worker_epoch: int, token_digest: bytes = b""
) -> bytes:
    """HMAC-SHA256 over client id, worker epoch (u64 little-endian), token digest and name. So a client cannot attach
    without admission, under another name, or to a worker that was replaced meanwhile.

    ``token_digest``: of the token used for the name, so that a ticket ends with its token; empty if none was needed.
    """
    message = client_id + worker_epoch.to_bytes(8, "little") + token_digest + name.encode()
    return hmac.new(instance_key, message, hashlib.sha256).digest()
